# SPDX-License-Identifier: Apache-2.0
"""Attention on one device under any mask of ranges."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch

from magi_attention._native.attention import Options
from magi_attention.common._arguments import as_bool, check_int
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.env import general
from magi_attention.functional._calls import is_eager, refusal, run
from magi_attention.functional._checks import (
    check_params,
    check_qkv,
    check_ranges,
    check_sink,
    check_sm_margin,
)
from magi_attention.functional._kept import kept
from magi_attention.functional._operators import (
    distinct,
    flex_backward_op,
    flex_call,
    flex_forward_op,
    refuse_derivatives,
    with_symbols,
)
from magi_attention.functional._sparse import (
    BlockLists,
    attend_to_block_lists,
    attend_to_lists,
    attend_unfolded,
    check_own_backend,
    heads_in_rows,
)
from magi_attention.functional.kernel_backend import (
    FA4,
    backend_of_environment,
    check_repeatable,
    fa4_takes,
)

# Arguments of older releases, without effect.
_RETIRED = ("max_seqlen_k",)
# What arguments of FlashAttention are here.
_IN_PLACE_OF = {
    "causal": "attn_type_map of 1, or attention(q, k, v, 'causal')",
    "window_size": "masks.from_cu_seqlens(bounds, window_size=(left, right)).tensors()",
    "cu_seqlens_q": "masks.from_cu_seqlens(cu_seqlens_q).tensors()",
    "dropout_p": "none, as attention has no dropout",
    "attn_mask": "masks.from_matrix(attn_mask).tensors()",
}
MAX_Q_BLOCK_SIZE = 256


class _FlexAttention(torch.autograd.Function):
    """out, lse and max_logits; gradients come through out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, q_ranges, k_ranges, types, sink, symbol, cap_symbol, options, other):
        symbols = symbol, cap_symbol
        tensors = q, k, v, q_ranges, k_ranges, types, sink
        fixed, ctx.backend = other
        ctx.refuse = refusal()
        out, lse, max_logits = kept(flex_forward_op, *tensors, *options, *symbols, ctx.backend)
        ctx.save_for_backward(q, k, v, out, lse, q_ranges, k_ranges, types, sink, *symbols)
        scale, softcap, layout, _, sm_margin = options
        ctx.params = (scale, softcap, layout, sm_margin, fixed)
        ctx.mark_non_differentiable(max_logits)
        return out, lse, max_logits

    @staticmethod
    def backward(ctx, dout, dlse, _dmax_logits):
        try:
            refuse_derivatives(dout, dlse)
            *tensors, sink, symbol, cap_symbol = ctx.saved_tensors
            dq, dk, dv, dsink = flex_backward_op(
                dout, dlse, *tensors, sink, *ctx.params, symbol, cap_symbol, ctx.backend
            )
        except Exception as error:
            if ctx.refuse is not None:
                ctx.refuse(error)
            raise
        dsink = None if sink is None else dsink
        return dq, dk, dv, None, None, None, dsink, None, None, None, None


def flex_flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ranges: torch.Tensor | None = None,
    k_ranges: torch.Tensor | None = None,
    attn_type_map: torch.Tensor | None = None,
    *,
    index_sparse_indices: torch.Tensor | None = None,
    q_block_size: int = 1,
    sparse_k_block_size: int = 1,
    sink: torch.Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
    disable_fwd_atomic_reduction: bool = False,
    disable_bwd_dkv_atomic_reduction: bool = False,
    disable_bwd_dq_atomic_reduction: bool = False,
    ref_block_size: tuple[int, int] | None = None,
    max_seqlen_q: int | None = None,
    range_merge: bool = False,
    swap_ab: bool = False,
    pack_gqa: bool = False,
    cat_gqa: bool = False,
    block_sparse: bool = False,
    index_sparse: bool = False,
    swap_bwd_qk_loop: bool | None = None,
    return_max_logits: bool = False,
    index_attn_indices: torch.Tensor | None = None,
    k_block_size: int = 1,
    auto_range_merge: bool = False,
    sparse_load: bool = False,
    index_attn: bool = False,
    **retired,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """Attention on one device: slice i lets the queries q_ranges[i] see the keys k_ranges[i].

    - q [rows_q, heads_q, dim]; k, v [rows_k, heads_kv, dim], where v may have another head dim.
      heads_q is a multiple of heads_kv. On a GPU bfloat16 or float16, head dims that are multiples
      of 8 up to 256; on the CPU float32 and float64 too, and any head dim.
    - q_ranges, k_ranges: int32 [n, 2], half-open. A pair of rows in several slices counts several
      times.
    - attn_type_map: int32 [n], 0 full, 1 causal (the diagonal ends at the last query and the last
      key), 2 inverse causal (it begins at the first ones), 3 both; None: all full.
    - sink: logits that add to a row's denominator only, float32 [sinks, heads_q] (sink_layout "sh")
      or [rows_q, sinks, heads_q] ("ssh"), 1 to 8 sinks.
    - softmax_scale: default 1 / sqrt(dim). softcap: c > 0 makes a logit c * tanh(logit / c).
    - return_max_logits: meta.max_logits is then the largest softmax_scale * q.k of each head,
      before softcap; else it is None.
    - deterministic: on a GPU the gradient of q, and under lists of keys those of k and v, have the
      same bits in every call, as all other results do; slower.
    - sm_margin: multiprocessors of a GPU that the call leaves free.
    - index_sparse_indices, instead of ranges: int32 [rows_q, heads_kv, n], the keys that each query
      sees in the heads of each kv head, or the blocks of sparse_k_block_size keys (the last may be
      shorter), in any order. -1 is none; an entry that occurs n times counts n times. Other entries
      that are no block count as none; meta.error_word counts them (MAGI_ATTENTION_SANITY_CHECK=1
      makes them ValueError). On a GPU head dims are up to 128, or 576 if v is the view
      k[..., :512] (bfloat16, no softcap and max_logits): the gradient of k then holds that of v.
      MagiAttention's form for several kv heads is taken too: q [rows_q * heads_kv, group, dim] and
      k, v [rows_k * heads_kv, 1, dim], the heads of a row one after the other. Results have that
      form.
    - q_block_size: 2 to 256: each list holds for a block of queries, [blocks, heads_kv, n].

    Returns out [rows_q, heads_q, dim of v] in q's type and a meta with lse [rows_q, heads_q]
    float32, natural log (float64 for float64 inputs). Gradients come through both. Rows without
    keys give out 0 and lse -inf, with a sink the sink's lse.

    Wrong tensors raise ValueError or TypeError naming the argument. The environment variable
    MAGI_ATTENTION_KERNEL_BACKEND chooses the kernels (docs/backends.md); what those of another
    package cannot do is refused by name.

    On a GPU the call is only enqueued, on the current stream. Ranges in host memory are checked,
    and the first call with them makes a schedule, which is kept. Ranges and lists on the GPU are
    not read by the host, which waits for nothing: ends outside are clamped, reversed ranges are
    empty, and gradients become NaN where ranges overlap so much that the schedule does not fit its
    memory, unless MAGI_ATTENTION_SANITY_CHECK is 1. Forward and backward can be captured in a
    graph, which follows the values that are there when it is replayed. With kernels of another
    package the host reads ranges on the GPU.

    The other arguments are there because MagiAttention has them. Without effect, as tiles are
    chosen from the mask: disable_fwd_atomic_reduction, disable_bwd_dkv_atomic_reduction,
    disable_bwd_dq_atomic_reduction, ref_block_size, max_seqlen_q, range_merge, swap_ab, pack_gqa,
    cat_gqa, block_sparse, swap_bwd_qk_loop, and index_sparse beside index_sparse_indices.
    index_attn_indices, index_attn, k_block_size, sparse_load and auto_range_merge are the names of
    release 1.1.1 for index_sparse_indices, index_sparse, sparse_k_block_size, block_sparse and
    range_merge.
    """
    _warn_retired(retired)
    return_max_logits = as_bool("return_max_logits", return_max_logits)
    options = sink, sink_layout, softmax_scale, softcap, return_max_logits
    tuning = sm_margin, as_bool("deterministic", deterministic), backend_of_environment()
    indices = _one_of(index_sparse_indices, index_attn_indices)
    sizes = q_block_size, _one_size(sparse_k_block_size, k_block_size)
    if indices is None:
        if index_sparse or index_attn or sizes != (1, 1):
            _refuse_without_lists(sizes, index_sparse=index_sparse, index_attn=index_attn)
        return _attend((q, k, v), (q_ranges, k_ranges, attn_type_map), options, tuning)
    _refuse_beside_lists(
        q_ranges=q_ranges, k_ranges=k_ranges, attn_type_map=attn_type_map,
        block_sparse=block_sparse, sparse_load=sparse_load,
    )  # fmt: skip
    folded = heads_in_rows(q, k, indices)
    if folded:
        return attend_unfolded(
            lambda qkv, options: _attend_to_lists(qkv, indices, sizes, options, tuning),
            (q, k, v), folded, options,
        )  # fmt: skip
    return _attend_to_lists((q, k, v), indices, sizes, options, tuning)


def _attend(
    qkv: tuple, mask: tuple, options: tuple, tuning: tuple
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """options: sink, its layout, softmax_scale, softcap, return_max_logits; tuning: sm_margin,
    deterministic, the backend.
    """
    sink, sink_layout, softmax_scale, softcap, return_max_logits = options
    sm_margin, deterministic, backend = tuning
    q, k, v = check_qkv(*qkv, backend)
    check_sm_margin(sm_margin, backend)
    if deterministic:
        check_repeatable(backend, "deterministic is True")
    scale, softcap = check_params(softmax_scale, softcap, q.dtype)
    sink, layout = check_sink(sink, sink_layout, q)
    mask = check_ranges(q, *mask)
    numbers = (layout, return_max_logits, sm_margin)
    if is_eager(q, k, v):
        native = Options(scale, softcap, *numbers, not deterministic)
        return run(q, k, v, sink, flex_call(q, k, v, sink, mask, native, backend), None)
    tensors = distinct(q, k, v, *mask, sink)
    scale, softcap, symbols = with_symbols(scale, softcap)
    options = (scale, softcap, *numbers), (deterministic, backend)
    out, lse, max_logits = _FlexAttention.apply(*tensors, *symbols, *options)
    return out, AttnForwardMeta(lse=lse, max_logits=max_logits if return_max_logits else None)


def ffa_fa4_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ranges: torch.Tensor,
    k_ranges: torch.Tensor,
    attn_type_map: torch.Tensor | None = None,
    *,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    reuse_attn_arg: bool = False,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """flex_flash_attn_func by FlashAttention-4 (backend fa4) for float16 and bfloat16 tensors on a
    GPU that it serves, where it is installed; other types and devices, softcap, a negative
    softmax_scale and deterministic (MAGI_ATTENTION_DETERMINISTIC_MODE=1 too) by the backend of
    flex_flash_attn_func. Head dims that FlashAttention-4 lacks are ValueError. reuse_attn_arg has
    no effect: what was made for a mask is always kept and found by its ranges.
    """
    deterministic = as_bool("deterministic", deterministic)
    kind = getattr(q, "dtype", None), getattr(q, "device", None)
    is_plain = softcap == 0.0 and (softmax_scale is None or softmax_scale >= 0.0)
    repeats = deterministic or general.is_deterministic_mode_enable()
    takes = is_plain and not repeats and fa4_takes(*kind)
    backend = FA4 if takes else backend_of_environment()
    options = None, "sh", softmax_scale, softcap, False
    mask = q_ranges, k_ranges, attn_type_map
    return _attend((q, k, v), mask, options, (0, deterministic, backend))


def _one_of(indices: torch.Tensor | None, older: torch.Tensor | None) -> torch.Tensor | None:
    """index_sparse_indices by either of its names."""
    if indices is not None and older is not None:
        raise ValueError(
            "index_attn_indices is given beside index_sparse_indices; allowed: one of them"
        )
    return older if indices is None else indices


def _one_size(size: int, older: int) -> int:
    """sparse_k_block_size by either of its names."""
    if older != 1 and size not in (1, older):
        raise ValueError(f"k_block_size is {older} beside sparse_k_block_size {size}; allowed: one")
    return older if size == 1 else size


def _refuse_without_lists(sizes: tuple[int, int], **flags: bool) -> None:
    """ValueError for arguments that have no meaning without lists."""
    asked: dict[str, Any] = {name: True for name, is_on in flags.items() if is_on}
    names = "q_block_size", "sparse_k_block_size"
    asked |= {name: size for name, size in zip(names, sizes) if size != 1}
    for name, value in asked.items():
        raise ValueError(f"{name} is {value} without index_sparse_indices; allowed: with them")


def _refuse_beside_lists(**others: torch.Tensor | bool | None) -> None:
    """ValueError for arguments that have no meaning with lists."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} is given beside index_sparse_indices; allowed: one of them")


def _attend_to_lists(
    qkv: tuple, indices: torch.Tensor, sizes: tuple[int, int], options: tuple, tuning: tuple
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """sizes: queries and keys of a block; options, tuning: those of _attend."""
    sink, sink_layout, softmax_scale, softcap, return_max_logits = options
    sm_margin, deterministic, backend = tuning
    check_int("q_block_size", sizes[0], 1, MAX_Q_BLOCK_SIZE)
    check_sm_margin(sm_margin, backend)
    if sizes[0] > 1:
        attend = partial(
            flex_flash_attn_func, softmax_scale=softmax_scale, softcap=softcap,
            deterministic=deterministic, sm_margin=sm_margin, return_max_logits=return_max_logits,
        )  # fmt: skip
        return attend_to_block_lists(attend, qkv, BlockLists(indices, *sizes), sink, sink_layout)
    check_own_backend(backend)
    numbers = softmax_scale, softcap, return_max_logits, sm_margin, deterministic
    return attend_to_lists(qkv, indices, sizes[1], (sink, sink_layout), numbers)


def _warn_retired(retired: dict) -> None:
    for name in retired:
        if name not in _RETIRED:
            step = _IN_PLACE_OF.get(name)
            raise TypeError(
                f"flex_flash_attn_func() got an unexpected keyword argument {name!r}"
                + (f"; allowed: ranges; try: {step}" if step else "")
            )
        warnings.warn(f"{name} is deprecated and has no effect", DeprecationWarning, stacklevel=3)
