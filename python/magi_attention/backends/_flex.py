# SPDX-License-Identifier: Apache-2.0
"""torch's FlexAttention as a backend, for GPUs without other kernels: masks by lists of blocks and
a function of pairs that reads runs of keys.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from magi_attention._native.attention import accumulator_dtype
from magi_attention._native.backend import Inputs, Limits, Problem
from magi_attention.backends._peer import Kernel, PeerAttention, Sums, register_peer
from magi_attention.backends._runs import Runs, block_mask_of, bounds

NAME = "flex"
LEAST_CAPABILITY = (7, 5)
LIMITS = Limits(
    head_dim_qk=(16, 256, 16), head_dim_v=(16, 256, 16),
    dtypes=(torch.float32, torch.float16, torch.bfloat16), stride_bytes=16, has_dlse=True,
)  # fmt: skip
_BLOCK = 128
_MOST_COMPILED = 1024


class _Flexible:
    """Calls of one mask."""

    def __init__(self, runs: Runs, problem: Problem) -> None:
        self._mask = _block_mask(runs, problem.device)

    def forward(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Does what Kernel.forward does."""
        found, found_lse = self._attend(inputs, *(_batch(t) for t in inputs[:3]))
        out.copy_(found[0].transpose(0, 1))
        lse.copy_(found_lse[0])

    def backward(self, inputs: Inputs, sums: Sums, gradients: Sequence[torch.Tensor]) -> None:
        """Does what Kernel.backward does. FlexAttention's own gradients are those of its own out
        and lse, of which out over all keys is a sum with weights exp(lse - sums.lse).
        """
        given = [_batch(t).detach().requires_grad_() for t in inputs[:3]]
        with torch.enable_grad():
            out, lse = self._attend(inputs, *given)
        wide = accumulator_dtype(out.dtype)
        share = torch.exp(lse.detach() - sums.lse)  # 0 in rows without pairs
        dout = _batch(sums.dout).to(wide)
        rest = out.detach().to(wide).nan_to_num() - _batch(sums.out)
        dlse = (dout * rest).sum(-1)
        if sums.dlse is not None:
            dlse += sums.dlse
        upstream = (dout * share.unsqueeze(-1)).to(out.dtype), (dlse * share).to(lse.dtype)
        found = torch.autograd.grad((out, lse), given, upstream)
        for gradient, one in zip(gradients, found):
            gradient.copy_(one[0].transpose(0, 1))

    def _attend(self, inputs: Inputs, q, k, v) -> tuple[torch.Tensor, torch.Tensor]:
        # Every number of runs and every shape is compiled; torch gives up after eight.
        with torch._dynamo.config.patch(**_limits_of_compiler()):
            out, aux = kernel()(
                q, k, v, block_mask=self._mask, scale=inputs.softmax_scale, enable_gqa=True,
                **_asking_for_lse(),
            )  # fmt: skip
        return out, getattr(aux, "lse", aux)


def _batch(tensor: torch.Tensor) -> torch.Tensor:
    """[rows, heads, dim] -> [1, heads, rows, dim]"""
    return tensor.transpose(0, 1).unsqueeze(0)


@functools.cache
def kernel():
    """flex_attention, compiled: only then it does not hold all scores in memory."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@functools.cache
def _asking_for_lse() -> dict:
    """Asks by the argument of torch 2.9 and later, or the one before."""
    from torch.nn.attention import flex_attention

    if hasattr(flex_attention, "AuxRequest"):
        return {"return_aux": flex_attention.AuxRequest(lse=True)}
    return {"return_lse": True}


@functools.cache
def _limits_of_compiler() -> dict[str, int]:
    import torch._dynamo.config as config

    kinds = ("recompile_limit", "accumulated_recompile_limit")
    if not hasattr(config, kinds[0]):  # their names before torch 2.7
        kinds = ("cache_size_limit", "accumulated_cache_size_limit")
    return dict.fromkeys(kinds, _MOST_COMPILED)


def _block_mask(runs: Runs, device: torch.device):
    num_runs = int(runs.counts().max())
    held = bounds(runs, num_runs, runs.num_rows + _BLOCK).to(device)

    def sees(batch, head, row, key):
        seen = (held[0, row] <= key) & (key < held[1, row])
        for run in range(1, num_runs):
            seen = seen | ((held[2 * run, row] <= key) & (key < held[2 * run + 1, row]))
        return seen

    return block_mask_of(runs, _BLOCK, sees, device)


def _kernels(problem: Problem, layers: list[Runs]) -> list[tuple[Kernel, Runs]]:
    return [(_Flexible(runs, problem), runs) for runs in layers]


def prepare(problem: Problem) -> PeerAttention:
    """Does what prepare does in magi_attention.backends.register."""
    if problem.is_backward and problem.is_deterministic:
        raise ValueError(f"deterministic is True with backend {NAME}; allowed: False")
    return PeerAttention(problem, _kernels)


register = functools.partial(register_peer, NAME, prepare, limits=LIMITS)
