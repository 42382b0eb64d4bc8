# SPDX-License-Identifier: Apache-2.0
"""Slices of placed queries that see keys which every rank holds whole."""

from __future__ import annotations

from magi_attention.common.enum import AttnMaskType
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat.attn_arg import AttnArg
from magi_attention.plan import Plan


def cross_slices(
    plan: Plan, only_rank: int | None, q_ranges: AttnRanges, k_ranges: AttnRanges
) -> AttnArg:
    """Full slices of the local rows of a rank, or with None of the rows of the sequence."""
    for attn_range in q_ranges:
        if not 0 <= attn_range.start <= attn_range.end <= plan.total_seqlen:
            raise ValueError(
                f"ref_xattn_q_ranges holds {attn_range}; allowed: 0 to {plan.total_seqlen}"
            )
    slices = AttnRanges(), AttnRanges(), []
    for rank in range(plan.cp_size) if only_rank is None else [only_rank]:
        own = plan.ranges_of(rank)
        for q_range, k_range in zip(q_ranges, k_ranges):
            wanted = AttnRanges.from_ranges([q_range])
            rows = own.find_overlap_ranges(wanted, is_self_merged=True)
            if only_rank is not None:
                rows = own.make_ranges_local(rows, is_self_merged=True)
            for q_rows in rows:
                slices[0].append(q_rows)
                slices[1].append(k_range.clone())
                slices[2].append(AttnMaskType.FULL.to_int_type())
    return AttnArg(*slices)
