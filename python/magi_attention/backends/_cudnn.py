# SPDX-License-Identifier: Apache-2.0
"""cuDNN's flex attention (`cudnn.flex_attention` of nvidia-cudnn-frontend) as a backend: masks by
interval ends, which tell any mask of pairs that count once.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from types import ModuleType

import torch

from magi_attention._native.backend import Inputs, Limits, Problem
from magi_attention.backends._peer import Kernel, PeerAttention, Sums, register_peer
from magi_attention.backends._runs import Runs, interval_ends

NAME = "cudnn"
PACKAGE = "nvidia-cudnn-frontend"
MODULE = "cudnn.flex_attention"
CAPABILITIES = ((9, 0), (10, 0), (10, 3))
LIMITS = Limits(
    head_dim_qk=(8, 256, 8), head_dim_v=(8, 256, 8), dtypes=(torch.float16, torch.bfloat16),
    stride_bytes=16, has_dlse=True,
)  # fmt: skip
_PAIRS_OF_DIMS = ((192, 128), (256, 256))  # beside those up to 128


def check_dims(name: str, problem: Problem, pairs: tuple[tuple[int, int], ...]) -> None:
    """ValueError for head dims of q and v that are neither both up to 128 nor among the pairs."""
    dims = problem.q_shape[2], problem.v_shape[2]
    if max(dims) > 128 and dims not in pairs:
        told = " and ".join(map(str, dims))
        allowed = ", ".join(f"{qk} and {v}" for qk, v in pairs)
        raise ValueError(
            f"head_dim of q and v is {told} with backend {name}; allowed: up to 128, or {allowed}"
        )


class _Intervals:
    """Calls of one mask. Its plan, and what is compiled for tensors of certain strides, are kept:
    shapes and types are those of the problem.
    """

    def __init__(self, peer: ModuleType, runs: Runs, problem: Problem) -> None:
        self._peer = peer
        self._ends = interval_ends(runs).unsqueeze(0).to(problem.device)
        self._is_deterministic = problem.is_deterministic
        self._plan = None
        self._forwards: dict[tuple, object] = {}
        self._backwards: dict[tuple, object] = {}

    def _plan_of(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_backward: bool):
        if self._plan is None:
            self._plan = self._peer.create_mask_plan(
                self._ends, q, k, v, build_backward=is_backward
            )
        return self._plan

    def forward(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Does what Kernel.forward does."""
        given = q, k, v, out = [t.unsqueeze(0) for t in (*inputs[:3], out)]
        lse = lse.unsqueeze(0)
        plan = self._plan_of(q, k, v, False)
        strides = tuple(t.stride() for t in given)
        call = self._forwards.get(strides)
        if call is None:
            call = self._peer.FlexAttentionFwd(*given, plan, lse)
            self._forwards[strides] = _compiled(call)
        call.execute(
            *given, plan, lse, workspace=_workspace(call, q), softmax_scale=inputs.softmax_scale
        )

    def backward(self, inputs: Inputs, sums: Sums, gradients: Sequence[torch.Tensor]) -> None:
        """Does what Kernel.backward does."""
        q, k, v = (t.unsqueeze(0) for t in inputs[:3])
        out, lse, dout = (t.unsqueeze(0) for t in sums[:3])
        dlse = None if sums.dlse is None else sums.dlse.unsqueeze(0)
        written = [t.unsqueeze(0) for t in gradients]
        plan = self._plan_of(q, k, v, True)
        given = (q, k, v, out, dout, lse, *written)
        kind = (dlse is None, *(t.stride() for t in given))
        call = self._backwards.get(kind)
        if call is None:
            call = self._peer.FlexAttentionBwd(
                *given, plan, dlse, deterministic=self._is_deterministic
            )
            self._backwards[kind] = _compiled(call)
        call.execute(
            *given, plan, dlse, workspace=_workspace(call, q), softmax_scale=inputs.softmax_scale
        )


def _compiled(call):
    call.check_support()
    call.compile()
    return call


def _workspace(call, like: torch.Tensor) -> torch.Tensor | None:
    return like.new_empty(call.workspace_size, dtype=torch.uint8) if call.workspace_size else None


def _kernels(problem: Problem, layers: list[Runs]) -> list[tuple[Kernel, Runs]]:
    peer = importlib.import_module(MODULE)
    return [(_Intervals(peer, runs, problem), runs) for runs in layers]


def prepare(problem: Problem) -> PeerAttention:
    """Does what prepare does in magi_attention.backends.register."""
    check_dims(NAME, problem, _PAIRS_OF_DIMS)
    return PeerAttention(problem, _kernels)


register = partial(register_peer, NAME, prepare, limits=LIMITS)
