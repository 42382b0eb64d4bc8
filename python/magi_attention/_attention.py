# SPDX-License-Identifier: Apache-2.0
"""Attention on one device in the words of this package."""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias, overload

import torch

from magi_attention.common._arguments import as_bool, check_choice, check_kind, trying
from magi_attention.functional._rank_attention import layout_of
from magi_attention.functional.flex_flash_attn import flex_flash_attn_func
from magi_attention.masks import Mask

_TYPE_OF = {"full": 0, "causal": 1}  # of attn_type_map
_Ranges: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | str,
    *,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | str,
    *,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | str,
    *,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes attention on one device, with gradients.

    - q [rows_q, heads_q, dim]; k, v [rows_k, heads_kv, dim], where v may have another head dim and
      heads_q is a multiple of heads_kv. Samples of a batch are packed along the rows.
    - mask: a mask of magi_attention.masks with rows_q queries and rows_k keys, or "full", or
      "causal", whose diagonal ends at the last query and the last key.
    - softmax_scale: 1 / sqrt(dim) if None. softcap: c > 0 makes a logit c * tanh(logit / c).
    - sink: logits that add to a row's denominator only, float32 [sinks, heads_q], or
      [rows_q, sinks, heads_q] for sinks of their own in each row.
    - deterministic: gradients have the same bits in every call, on GPUs too; slower there.

    Returns out [rows_q, heads_q, dim of v] in q's type, and with return_lse also lse
    [rows_q, heads_q], which gradients come through too. A row without keys gives out 0 and lse
    -inf. Devices, types and kernels are those of flex_flash_attn_func. ValueError or TypeError
    names an argument that does not fit.
    """
    for argument, tensor in (("q", q), ("k", k)):
        check_kind(argument, tensor, torch.Tensor, "a tensor")
    with_lse = as_bool("return_lse", return_lse)
    name = mask
    if not isinstance(mask, str):
        with trying("masks.from_matrix(mask)"):
            check_kind("mask", mask, Mask, "a Mask of magi_attention.masks, 'full' or 'causal'")
        name = mask.name  # which names a mask while someone has it, here the caller or `mask`
    ranges = _ranges_of(name, len(q), len(k))
    out, meta = flex_flash_attn_func(
        q, k, v, *ranges, sink=sink, sink_layout=layout_of(sink), softmax_scale=softmax_scale,
        softcap=softcap, deterministic=deterministic,
    )  # fmt: skip
    return (out, meta.lse) if with_lse else out


def _ranges_of(name: str, rows_q: int, rows_k: int) -> _Ranges:
    """q_ranges, k_ranges and attn_type_map in host memory of a mask by its name; ValueError for one
    of other sizes.
    """
    mask = Mask.by_name.get(name)
    if mask is None:
        check_choice("mask", name, tuple(_TYPE_OF))
        return _one_slice(rows_q, rows_k, _TYPE_OF[name])
    if (mask.rows_q, mask.rows_k) != (rows_q, rows_k):
        raise ValueError(
            f"mask has {mask.rows_q} queries and {mask.rows_k} keys; "
            f"allowed: {rows_q} and {rows_k}, the rows of q and k; try: q.transpose(0, 1) of "
            "[heads, rows, head_dim], q.flatten(0, 1) of [batch, rows, heads, head_dim]"
        )
    return mask.host_tensors


# What torch.compiler.assume_constant_result sets: a compiler takes the tensors of a mask as
# constants, and guards on the mask's name. Calling it would import the compiler.
_ranges_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=64)
def _one_slice(rows_q: int, rows_k: int, kind: int) -> _Ranges:
    ends = [torch.tensor([[0, rows]], dtype=torch.int32, device="cpu") for rows in (rows_q, rows_k)]
    return ends[0], ends[1], torch.tensor([kind], dtype=torch.int32, device="cpu")
