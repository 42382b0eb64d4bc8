# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the kernels of other packages, by their signatures: dense attention in float64 of
the very arguments that a kernel gets. They check what the kernels check, and fill results that are
not defined with NaN.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any, NamedTuple
from unittest import mock

import torch

import dense
from magi_attention.backends import _flex


def dense_forward(q, k, v, visible, scale, out, lse) -> None:
    """out [rows, heads, dim], lse [heads, rows]; NaN in rows that see nothing."""
    found, found_lse, _ = dense.attention(q.double(), k.double(), v.double(), visible, scale=scale)
    out.copy_(found)
    lse.copy_(found_lse.T)
    blind = ~visible.any(1)
    out[blind] = lse[:, blind] = torch.nan


def dense_backward(tensors, visible, scale, dlse, written) -> None:
    """tensors: q, k, v, out, dout, lse; dq, dk and dv are NaN where no pair is."""
    assert tensors[-1].isfinite().all()
    lone = ~visible.any(1), ~visible.any(0), ~visible.any(0)
    found = dense.backward(tensors, visible, scale, dlse=dlse)
    for tensor, gradient, rows in zip(written, found, lone):
        tensor.copy_(gradient)
        tensor[rows] = torch.nan


def _check_one_batch(*tensors: torch.Tensor) -> list[torch.Tensor]:
    for tensor in tensors:
        assert tensor.shape[0] == 1 and tensor.stride(-1) == 1
    return [tensor[0] for tensor in tensors]


class IntervalPlan:
    """cudnn.flex_attention.create_mask_plan."""

    def __init__(self, mask_func, q, k, v, *, build_backward=None) -> None:
        assert mask_func.dtype == torch.int32 and mask_func.is_contiguous()
        heads, num_ends, rows = mask_func.shape
        assert heads == 1 and num_ends % 2 == 1 and q.shape[:2] == (1, rows)
        self.has_backward = bool(build_backward)
        ends = mask_func[0].long()
        assert ((ends >= 0) & (ends <= k.shape[1])).all() and (ends.diff(dim=0) >= 0).all()
        ends = torch.cat((torch.zeros(1, rows, dtype=torch.int64), ends)).view(-1, 2, rows, 1)
        keys = torch.arange(k.shape[1])
        self.visible = ((ends[:, 0] <= keys) & (keys < ends[:, 1])).any(0)


class _Call:
    """What calls of cudnn.flex_attention have in common: prepared for one kind of tensors."""

    workspace_size = 128

    def __init__(self, *samples: Any, deterministic: bool = False) -> None:
        self._kinds = self._kinds_of(samples)
        self._is_compiled = False

    @staticmethod
    def _kinds_of(given) -> list:
        return [(t.shape, t.stride()) for t in given if isinstance(t, torch.Tensor)]

    def check_support(self) -> None:
        assert all(all(shape) for shape, _ in self._kinds)

    def compile(self) -> None:
        self._is_compiled = True

    def _check(self, given, workspace) -> None:
        assert self._is_compiled and self._kinds == self._kinds_of(given)
        assert workspace.numel() == self.workspace_size and workspace.dtype == torch.uint8


class FlexAttentionFwd(_Call):
    def execute(self, q, k, v, o, plan, lse=None, *, workspace=None, softmax_scale=None) -> None:
        self._check((q, k, v, o, lse), workspace)
        assert lse.is_contiguous()
        dense_forward(
            *_check_one_batch(q, k, v), plan.visible, softmax_scale, *_check_one_batch(o, lse)
        )


class FlexAttentionBwd(_Call):
    def execute(
        self, q, k, v, o, do, lse, dq, dk, dv, plan, dlse=None, *, workspace, softmax_scale=None
    ) -> None:  # fmt: skip
        self._check((q, k, v, o, do, lse, dq, dk, dv, dlse), workspace)
        assert plan.has_backward and lse.is_contiguous()
        dense_backward(
            _check_one_batch(q, k, v, o, do, lse), plan.visible, softmax_scale,
            None if dlse is None else dlse[0], _check_one_batch(dq, dk, dv),
        )  # fmt: skip


class BlockSparseTensorsTorch(NamedTuple):
    mask_block_cnt: torch.Tensor
    mask_block_idx: torch.Tensor
    full_block_cnt: torch.Tensor | None = None
    full_block_idx: torch.Tensor | None = None
    cu_total_m_blocks: torch.Tensor | None = None
    cu_block_idx_offsets: torch.Tensor | None = None
    block_size: tuple[int, int] | None = None
    dq_write_order: torch.Tensor | None = None
    dq_write_order_full: torch.Tensor | None = None
    spt: bool | None = None


class _Vector(NamedTuple):
    """A vector of one number in each of many threads."""

    values: torch.Tensor

    def __getitem__(self, index):
        assert index == 0
        return self.values


def _shown(counts, indices, shape: tuple[int, int], transposed: bool) -> torch.Tensor:
    """The listed blocks, bool [blocks of rows, blocks of keys]."""
    lines, columns = reversed(shape) if transposed else shape
    assert counts.dtype == indices.dtype == torch.int32
    assert counts.shape == (1, 1, lines) and indices.shape[:3] == (1, 1, lines)
    assert indices.shape[3] <= columns
    found = torch.zeros(lines, columns, dtype=torch.bool)
    for line in range(lines):
        chosen = indices[0, 0, line, : counts[0, 0, line]].long()
        assert (chosen.diff() > 0).all()
        found[line, chosen] = True
    return found.T if transposed else found


def _block_visible(rows, keys, sparse, mask_mod, aux_tensors, is_backward) -> torch.Tensor:
    """Pairs that block lists and the function of pairs show together."""
    height, width = sparse.block_size
    shape = -(-rows // height), -(-keys // width)
    part = _shown(sparse.mask_block_cnt, sparse.mask_block_idx, shape, is_backward)
    whole = _shown(sparse.full_block_cnt, sparse.full_block_idx, shape, is_backward)
    assert not (part & whole).any()
    padded = [n * size for n, size in zip(shape, (height, width))]
    row, key = torch.meshgrid(*map(torch.arange, padded), indexing="ij")
    zero = _Vector(torch.zeros_like(row))
    # Kernels ask for pairs behind the last row too, and do not look at what comes back.
    seen = mask_mod(zero, zero, _Vector(row), key, None, aux_tensors)
    part, whole = (
        t.repeat_interleave(height, 0).repeat_interleave(width, 1) for t in (part, whole)
    )
    return (part & seen | whole)[:rows, :keys]


def _packed_visible(rows, keys, cu_q, cu_k, causal, window) -> torch.Tensor:
    assert not causal or window == (None, None)
    visible = torch.zeros(rows, keys, dtype=torch.bool)
    bounds_q = [0, rows] if cu_q is None else cu_q.tolist()
    bounds_k = [0, keys] if cu_k is None else cu_k.tolist()
    assert (bounds_q[0], bounds_q[-1], bounds_k[0], bounds_k[-1]) == (0, rows, 0, keys)
    for q0, q1, k0, k1 in zip(bounds_q, bounds_q[1:], bounds_k, bounds_k[1:]):
        visible[q0:q1, k0:k1] = dense.window(q1 - q0, k1 - k0, causal, window)
    return visible


fa4_forms: set[str] = set()  # of masks that the calls of this process had


def _fa4_visible(q, k, options: dict, is_backward: bool) -> torch.Tensor:
    """Takes the mask out of options."""
    sparse = options.pop("block_sparse_tensors", None)
    causal = options.pop("causal", False)
    if sparse is None:
        fa4_forms.add("packed" if q.dim() == 3 else "whole")
        cuts = [options.pop(name, None) for name in ("cu_seqlens_q", "cu_seqlens_k")]
        rows, keys = (q.shape[-3], k.shape[-3])
        for name, cut, count in zip(("max_seqlen_q", "max_seqlen_k"), cuts, (rows, keys)):
            longest = options.pop(name, count)
            assert cut is None or (cut.dtype == torch.int32 and longest == cut.diff().max())
        assert (q.dim() == 3) == (cuts[0] is not None)
        sides = (f"window_size_{side}" for side in ("left", "right"))
        window = tuple(options.pop(side, None) for side in sides)
        if window != (None, None):
            fa4_forms.add("window")
        return _packed_visible(rows, keys, *cuts, causal, window)
    fa4_forms.add("blocks")
    assert not causal and q.dim() == 4
    mask = options.pop("mask_mod"), options.pop("aux_tensors")
    return _block_visible(q.shape[1], k.shape[1], sparse, *mask, is_backward)


def _one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[0] if tensor.dim() == 4 else tensor


def _flash_attn_fwd(q, k, v, *, softmax_scale, out, lse, return_lse, **options):
    visible = _fa4_visible(q, k, options, False)
    assert return_lse and not options, options
    lse_of_one = lse[0] if lse.dim() == 3 else lse
    dense_forward(_one(q), _one(k), _one(v), visible, softmax_scale, _one(out), lse_of_one)


def _flash_attn_bwd(q, k, v, out, dout, lse, *, softmax_scale, dq, dk, dv, dlse, **options):
    visible = _fa4_visible(q, k, options, True)
    assert not options, options
    lse, dlse = (t[0] if t is not None and t.dim() == 3 else t for t in (lse, dlse))
    tensors = (*map(_one, (q, k, v, out, dout)), lse)
    dense_backward(tensors, visible, softmax_scale, dlse, list(map(_one, (dq, dk, dv))))


class _Aux(NamedTuple):
    lse: torch.Tensor


def flex_attention(q, k, v, *, block_mask, scale, enable_gqa, return_aux):
    """torch's, with a gradient, which it has not in host memory. Tensors are [1, heads, rows, dim]
    with heads of q and k that differ.
    """
    assert enable_gqa and return_aux.lse and block_mask.seq_lengths == (q.shape[2], k.shape[2])
    kinds = "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"
    lists = [getattr(block_mask, kind) for kind in kinds]
    sparse = BlockSparseTensorsTorch(*lists, block_size=block_mask.BLOCK_SIZE)

    def mask_mod(batch, head, row, key, _seqlen_info, _aux_tensors):
        return block_mask.mask_mod(batch.values, head.values, row.values, key)

    visible = _block_visible(q.shape[2], k.shape[2], sparse, mask_mod, None, False)
    of_rows = (t[0].double().transpose(0, 1) for t in (q, k, v))
    out, lse, _ = dense.attention(*of_rows, visible, scale=scale)
    return out.transpose(0, 1)[None].to(q.dtype), _Aux(lse.T[None].to(q.dtype))


def _modules() -> dict[str, types.ModuleType]:
    contents = {
        "cudnn": {},
        "cudnn.flex_attention": {
            "create_mask_plan": IntervalPlan,
            "FlexAttentionFwd": FlexAttentionFwd,
            "FlexAttentionBwd": FlexAttentionBwd,
        },
        "flash_attn": {},
        "flash_attn.cute": {},
        "flash_attn.cute.interface": {
            "_flash_attn_fwd": _flash_attn_fwd,
            "_flash_attn_bwd": _flash_attn_bwd,
        },
        "flash_attn.cute.block_sparsity": {"BlockSparseTensorsTorch": BlockSparseTensorsTorch},
        "flash_attn.cute.utils": {"scalar_to_ssa": lambda value, dtype: value},
        "cutlass": {"Int32": torch.int32, "range_constexpr": range},
        "cutlass.cute": {"jit": lambda function: function},
    }
    found = {}
    for name, members in contents.items():
        found[name] = types.ModuleType(name)
        vars(found[name]).update(members)
    return found


@contextlib.contextmanager
def stand_ins():
    """The stand-ins in the place of the packages."""
    made = _modules()
    kept = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        with mock.patch.object(_flex, "kernel", lambda: flex_attention):
            yield
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
