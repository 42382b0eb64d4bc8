# SPDX-License-Identifier: Apache-2.0
"""Slices of placed queries that see keys which every rank holds whole."""

from __future__ import annotations

from collections.abc import Sequence

from magi_attention.common.enum import AttnMaskType
from magi_attention.common.ranges import AttnRanges
from magi_attention.meta.collection.calc_meta import AttnArg
from magi_attention.plan import Plan


def cross_slices(
    plan: Plan, ranks: Sequence[int], q_ranges: AttnRanges, k_ranges: AttnRanges
) -> AttnArg:
    """Full slices of the rows of `ranks`, which lie one rank after the other."""
    for attn_range in q_ranges:
        if not 0 <= attn_range.start <= attn_range.end <= plan.total_seqlen:
            raise ValueError(
                f"ref_xattn_q_ranges holds {attn_range}; allowed: 0 to {plan.total_seqlen}"
            )
    result = AttnArg(AttnRanges(), AttnRanges(), [])
    first_row = 0
    for rank in ranks:
        own = plan.ranges_of(rank)
        for q_range, k_range in zip(q_ranges, k_ranges):
            wanted = AttnRanges.from_ranges([q_range])
            common = own.find_overlap_ranges(wanted, is_self_merged=True)
            for local in own.make_ranges_local(common, is_self_merged=True):
                result.q_ranges.append(local.offset(first_row))
                result.k_ranges.append(k_range.clone())
                result.attn_type_map.append(AttnMaskType.FULL.to_int_type())
        first_row += plan.rows_of(rank)
    return result
