# SPDX-License-Identifier: Apache-2.0
"""Slices as dense matrices, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from magi_attention.common._arguments import check_int
from magi_attention.common.device import default_device
from magi_attention.common.ranges import AttnRanges

_CAUSAL, _INV_CAUSAL = 1, 2  # bits of a type's number


def make_ffa_causal_mask(
    seqlen_q: int,
    seqlen_k: int,
    attn_type_idx: int = 0,
    device: torch.device | str | int | None = None,
) -> torch.Tensor:
    """bool [seqlen_q, seqlen_k], True where a slice of this type (0 full, 1 causal, 2 inverse
    causal, 3 both) shows a key. device: the current GPU, or host memory where torch has no CUDA.
    """
    check_int("attn_type_idx", attn_type_idx, 0, 3)
    device = default_device(device)
    rows = torch.arange(seqlen_q, device=device)[:, None]
    keys = torch.arange(seqlen_k, device=device)[None, :]
    visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if attn_type_idx & _CAUSAL:
        visible &= keys - rows <= seqlen_k - seqlen_q
    if attn_type_idx & _INV_CAUSAL:
        visible &= keys >= rows
    return visible


def make_attn_mask_from_ffa_args(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_type_map: Sequence[int],
    total_seqlen_q: int,
    total_seqlen_k: int,
    device: torch.device | str | int | None = None,
) -> torch.Tensor:
    """bool [total_seqlen_q, total_seqlen_k], True where a slice shows a key: q_ranges[i] see
    k_ranges[i] under the type of number attn_type_map[i]. device: as in make_ffa_causal_mask.
    """
    device = default_device(device)
    visible = torch.zeros(total_seqlen_q, total_seqlen_k, dtype=torch.bool, device=device)
    for q, k, kind in zip(q_ranges, k_ranges, attn_type_map):
        part = make_ffa_causal_mask(q.seqlen, k.seqlen, kind, device)
        visible[q.start : q.end, k.start : k.end] |= part
    return visible


get_attn_mask_from_ffa_args = make_attn_mask_from_ffa_args
