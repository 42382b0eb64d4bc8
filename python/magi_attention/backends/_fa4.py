# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4 (`flash_attn.cute`) as a backend: packed documents by its own calls for those,
any other mask by lists of blocks and a function of pairs that reads runs of keys.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from magi_attention._native.backend import Inputs, Limits, Problem
from magi_attention.backends._cudnn import check_dims
from magi_attention.backends._peer import Kernel, PeerAttention, Sums, register_peer
from magi_attention.backends._runs import (
    Blocks,
    Documents,
    Runs,
    blocks_of,
    bounds,
    documents_of,
    listed,
    split,
)

NAME = "fa4"
PACKAGE = "flash-attn-4"
MODULE = "flash_attn.cute.interface"
MAJORS = (9, 10, 11)  # of compute capabilities
LIMITS = Limits(
    head_dim_qk=(8, 256, 8), head_dim_v=(8, 256, 8), dtypes=(torch.float16, torch.bfloat16),
    stride_bytes=16, has_dlse=True,
)  # fmt: skip
_PAIRS_OF_DIMS = ((192, 128),)  # beside those up to 128, after Hopper
_MOST_RUNS = 16  # of a row in one call: each pair is compared with all of them
_ROWS_BEHIND = 512  # rows that a call may ask for past the last one, in tiles that reach so far


class _Packed:
    """Calls for documents one after the other; one that is all is a call without bounds."""

    def __init__(self, documents: Documents, device: torch.device) -> None:
        lengths = documents.lengths
        window = documents.left, documents.right
        self._options: dict[str, Any] = {"causal": window == (None, 0)}
        if documents.left is not None or documents.right:
            self._options |= {"window_size_left": window[0], "window_size_right": window[1]}
        self._is_batch = len(lengths) == 1
        if not self._is_batch:
            ends = torch.nn.functional.pad(lengths.cumsum(0), (0, 0, 1, 0)).int().to(device)
            self._options |= {
                "cu_seqlens_q": ends[:, 0].contiguous(),
                "cu_seqlens_k": ends[:, 1].contiguous(),
                "max_seqlen_q": int(lengths[:, 0].max()),
                "max_seqlen_k": int(lengths[:, 1].max()),
            }

    def _shaped(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [t.unsqueeze(0) for t in tensors] if self._is_batch else list(tensors)

    def forward(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Does what Kernel.forward does."""
        q, k, v, out, lse = self._shaped((*inputs[:3], out, lse))
        _interface()._flash_attn_fwd(
            q, k, v, softmax_scale=inputs.softmax_scale, out=out, lse=lse, return_lse=True,
            **self._options,
        )  # fmt: skip

    def backward(self, inputs: Inputs, sums: Sums, gradients: Sequence[torch.Tensor]) -> None:
        """Does what Kernel.backward does."""
        tensors = self._shaped((*inputs[:3], *sums[:3], *gradients))
        dlse = None if sums.dlse is None else self._shaped((sums.dlse,))[0]
        _backward(tensors, dlse, inputs.softmax_scale, self._options)


class _BlockSizes(NamedTuple):
    """Rows and keys of a block in forward and in backward, as the tiles of the kernels divide
    them.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]


def block_sizes(major: int, dim_qk: int, dim_v: int) -> _BlockSizes:
    """Tells by the major number of the compute capability and the head dims."""
    if major != 9:
        return _BlockSizes((256, 128), (256, 256 if dim_qk > 128 else 128))
    widest = max(dim_qk, dim_v)
    forward = 128 if dim_qk <= 128 or (dim_qk <= 192 and dim_v <= 128) else 64
    if widest <= 128:
        return _BlockSizes((128, forward), (128, 128))
    return _BlockSizes((128, forward), (128, 96 if dim_qk <= 192 else 64))


class _Sparse:
    """Calls for any mask whose rows have at most _MOST_RUNS runs."""

    def __init__(self, runs: Runs, problem: Problem) -> None:
        sizes = block_sizes(_major(problem.device), problem.q_shape[2], problem.v_shape[2])
        most = int(runs.counts().max())
        num_runs = 1 << (most - 1).bit_length()  # few numbers, as each is compiled
        held = bounds(runs, num_runs, runs.num_rows + _ROWS_BEHIND).to(problem.device)
        self._options = {"mask_mod": interval_mask(num_runs), "aux_tensors": [held]}
        if problem.is_backward:
            blocks = blocks_of(runs, *sizes.backward)
            blocks = Blocks(blocks.whole.T, blocks.part.T)
            self._blocks = _listed(blocks, sizes.backward, problem.device)
        else:
            self._blocks = _listed(blocks_of(runs, *sizes.forward), sizes.forward, problem.device)

    def forward(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Does what Kernel.forward does."""
        q, k, v, out, lse = (t.unsqueeze(0) for t in (*inputs[:3], out, lse))
        _interface()._flash_attn_fwd(
            q, k, v, softmax_scale=inputs.softmax_scale, out=out, lse=lse, return_lse=True,
            block_sparse_tensors=self._blocks, **self._options,
        )  # fmt: skip

    def backward(self, inputs: Inputs, sums: Sums, gradients: Sequence[torch.Tensor]) -> None:
        """Does what Kernel.backward does."""
        tensors = [t.unsqueeze(0) for t in (*inputs[:3], *sums[:3], *gradients)]
        dlse = None if sums.dlse is None else sums.dlse.unsqueeze(0)
        options = self._options | {"block_sparse_tensors": self._blocks}
        _backward(tensors, dlse, inputs.softmax_scale, options)


def _backward(tensors, dlse: torch.Tensor | None, scale: float, options: dict[str, Any]) -> None:
    """tensors: q, k, v, out, lse, dout, dq, dk, dv."""
    q, k, v, out, lse, dout, dq, dk, dv = tensors
    _interface()._flash_attn_bwd(
        q, k, v, out, dout, lse, softmax_scale=scale, dq=dq, dk=dk, dv=dv, dlse=dlse, **options
    )


def _listed(blocks: Blocks, block_size: tuple[int, int], device: torch.device):
    """The blocks as the kernels take them: of one mask for all heads."""
    sparsity = importlib.import_module("flash_attn.cute.block_sparsity")
    both = blocks.part, blocks.whole
    part, whole = ([t[None, None].to(device) for t in listed(shown)] for shown in both)
    return sparsity.BlockSparseTensorsTorch(
        mask_block_cnt=part[0], mask_block_idx=part[1], full_block_cnt=whole[0],
        full_block_idx=whole[1], block_size=block_size,
    )  # fmt: skip


@functools.cache
def interval_mask(num_runs: int):
    """The kernels' function of a pair: whether the key is in one of the row's runs, which the first
    auxiliary tensor holds (_runs.bounds).
    """
    cutlass = importlib.import_module("cutlass")
    cute = importlib.import_module("cutlass.cute")
    utils = importlib.import_module("flash_attn.cute.utils")

    @cute.jit
    def sees(batch, head, row, key, seqlen_info, aux_tensors):
        held = aux_tensors[0]
        begin = utils.scalar_to_ssa(held[0, row[0]], cutlass.Int32)
        end = utils.scalar_to_ssa(held[1, row[0]], cutlass.Int32)
        seen = (begin <= key) & (key < end)
        for run in cutlass.range_constexpr(1, num_runs):
            begin = utils.scalar_to_ssa(held[2 * run, row[0]], cutlass.Int32)
            end = utils.scalar_to_ssa(held[2 * run + 1, row[0]], cutlass.Int32)
            seen = seen | ((begin <= key) & (key < end))
        return seen

    return sees


def _interface():
    return importlib.import_module(MODULE)


def _major(device: torch.device) -> int:
    """Tells by the GPU's compute capability; host memory stands for Hopper."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else MAJORS[0]


def _kernels(problem: Problem, layers: list[Runs]) -> list[tuple[Kernel, Runs]]:
    rows, keys = problem.q_shape[0], problem.k_shape[0]
    if len(layers) == 1:
        documents = documents_of(problem.slices, rows, keys)
        if documents is not None:
            return [(_Packed(documents, problem.device), layers[0])]
    parts = [part for layer in layers for part in split(layer, _MOST_RUNS)]
    return [(_Sparse(part, problem), part) for part in parts]


def prepare(problem: Problem) -> PeerAttention:
    """Does what prepare does in magi_attention.backends.register."""
    if problem.is_backward and problem.is_deterministic:
        raise ValueError(f"deterministic is True with backend {NAME}; allowed: False")
    if _major(problem.device) != MAJORS[0]:
        check_dims(NAME, problem, _PAIRS_OF_DIMS)
    elif problem.q_shape[1] != problem.k_shape[1] and problem.q_shape[2] != problem.v_shape[2]:
        raise ValueError(
            f"head_dim of v is {problem.v_shape[2]} with backend {NAME} and fewer heads of k than "
            f"of q; allowed: {problem.q_shape[2]}, that of q"
        )
    return PeerAttention(problem, _kernels)


register = functools.partial(register_peer, NAME, prepare, limits=LIMITS)
