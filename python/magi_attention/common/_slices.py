# SPDX-License-Identifier: Apache-2.0
"""Checks of the slices of a mask that a caller gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import check_int, check_kind
from magi_attention.common.enum import AttnMaskType
from magi_attention.common.range import AttnRange
from magi_attention.common.ranges import AttnRanges

MaskTypes: TypeAlias = str | AttnMaskType | Sequence[str | AttnMaskType]


def to_mask_types(types: MaskTypes, count: int) -> tuple[AttnMaskType, ...]:
    """One type per slice from a name, a type, or a list of either."""
    if isinstance(types, (str, AttnMaskType)):
        return (_to_mask_type(types),) * count
    if not hasattr(types, "__iter__"):
        check_kind("attn_mask_type", types, str, "a name, an AttnMaskType, or a list of either")
    result = tuple(t if type(t) is AttnMaskType else _to_mask_type(t) for t in types)
    if len(result) != count:
        raise ValueError(
            f"attn_mask_type has {len(result)} entries; allowed: {count}, one per range, or one"
        )
    return result


_BY_VALUE = {mask_type.value: mask_type for mask_type in AttnMaskType}


def _to_mask_type(value: str | AttnMaskType) -> AttnMaskType:
    known = _BY_VALUE.get(value) if type(value) is str else None
    if known is not None:
        return known
    try:
        return AttnMaskType(value)
    except ValueError:
        names = ", ".join(repr(mask_type.value) for mask_type in AttnMaskType)
        raise ValueError(f"attn_mask_type is {value!r}; allowed: {names}") from None


def typed_ranges(mask: MaskHandle) -> tuple[AttnRanges, AttnRanges, list[AttnMaskType]]:
    """q_ranges, k_ranges and types of a mask: a slice with two bounds becomes up to three."""
    slices = mask.typed_slices()
    return (
        AttnRanges.from_ranges([s[0:2] for s in slices]),
        AttnRanges.from_ranges([s[2:4] for s in slices]),
        [AttnMaskType.from_int_type(s[4]) for s in slices],
    )


def check_equally_many(
    q_ranges: AttnRanges, others: Sequence, name: str = "k_ranges", wanted: str = "q_ranges"
) -> None:
    """ValueError unless there are as many others as q_ranges."""
    if len(others) != len(q_ranges):
        raise ValueError(f"{name} has {len(others)} entries; allowed: {len(q_ranges)}, as {wanted}")


def check_inside(name: str, ranges: AttnRanges, rows: int) -> None:
    """TypeError or ValueError for a range that is not ints with 0 <= start <= end <= rows."""
    for index, attn_range in enumerate(ranges):
        start = check_int(f"{name}[{index}].start", attn_range.start, 0, rows)
        check_int(f"{name}[{index}].end", attn_range.end, start, rows)


def apply_padding(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: list[AttnMaskType],
    total_seqlen: int,
    pad_size: int,
) -> tuple[AttnRanges, AttnRanges, list[AttnMaskType]]:
    """The slices with one more: rows [total_seqlen, total_seqlen + pad_size) that see no key.
    ValueError unless there are as many k_ranges and types as q_ranges.
    """
    for name, ranges in (("q_ranges", q_ranges), ("k_ranges", k_ranges)):
        check_kind(name, ranges, AttnRanges, "AttnRanges")
    check_kind("attn_mask_type", attn_mask_type, (list, tuple), "a list of AttnMaskType")
    for name, given in (("k_ranges", k_ranges), ("attn_mask_type", attn_mask_type)):
        check_equally_many(q_ranges, given, name)
    check_int("total_seqlen", total_seqlen, 0)
    check_int("pad_size", pad_size, 0)
    padded_q, padded_k = q_ranges.clone(), k_ranges.clone()
    padded_q.append(AttnRange(total_seqlen, total_seqlen + pad_size))
    padded_k.append(AttnRange(0, 0))
    return padded_q, padded_k, [*attn_mask_type, AttnMaskType.FULL]
