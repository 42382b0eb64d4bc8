# SPDX-License-Identifier: Apache-2.0
"""What backends made of other packages' kernels have in common: a mask cut into parts that the
kernel can tell, parts merged by their lse, and rows and keys that no pair has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from magi_attention._native.backend import Gradients, Inputs, Limits, Problem, Result
from magi_attention.backends import _registry
from magi_attention.backends._runs import Runs, layers_of, unseen


class Kernel(Protocol):
    """Attention under pairs that count once each. Tensors are those of Inputs, Result and
    Gradients, but for lse and dlse, which are [heads, rows] without gaps; results are written
    whole. What rows and keys without pairs get is the caller's to set.
    """

    def forward(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Writes out and lse."""

    def backward(self, inputs: Inputs, sums: Sums, gradients: Sequence[torch.Tensor]) -> None:
        """Writes dq, dk and dv."""


class Sums(NamedTuple):
    """The tensors that backward reads beside the inputs. out and lse are over all keys of a row,
    which may be more than the kernel's; lse is a number in every row.
    """

    out: torch.Tensor
    lse: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor | None


# Makes kernels of a problem for the runs that each is to show, together its pairs. The layers are
# those of _runs.layers_of.
MakeKernels = Callable[[Problem, list[Runs]], list[tuple[Kernel, Runs]]]


class _Part(NamedTuple):
    """A kernel; the rows and keys that it has no pair of, on the device, or None."""

    kernel: Kernel
    lone_rows: torch.Tensor | None
    lone_keys: torch.Tensor | None

    def forward(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.kernel.forward(inputs, out, lse)
        if self.lone_rows is not None:
            out.index_fill_(0, self.lone_rows, 0.0)
            lse.index_fill_(1, self.lone_rows, -torch.inf)

    def backward(self, inputs: Inputs, sums: Sums, gradients: Sequence[torch.Tensor]) -> None:
        self.kernel.backward(inputs, sums, gradients)
        for tensor, lone in zip(gradients, (self.lone_rows, self.lone_keys, self.lone_keys)):
            if lone is not None:
                tensor.index_fill_(0, lone, 0.0)


class PeerAttention:
    """Attention under the mask of a problem by another package's kernels. The kernels are made at
    the first call, on the device and stream of that.
    """

    def __init__(self, problem: Problem, make_kernels: MakeKernels) -> None:
        self._problem, self._make_kernels = problem, make_kernels
        self._made: list[_Part] | None = None
        self._lock = threading.Lock()

    def _parts(self) -> list[_Part]:
        with self._lock:
            if self._made is None:
                problem = self._problem
                layers = layers_of(problem.slices, problem.q_shape[0], problem.k_shape[0])
                made = []
                for kernel, runs in self._make_kernels(problem, layers):
                    lone = (t.to(problem.device) if len(t) else None for t in unseen(runs))
                    made.append(_Part(kernel, *lone))
                if problem.device.type == "cuda":  # later calls may be on other streams
                    torch.cuda.current_stream(problem.device).synchronize()
                self._made = made
            return self._made

    def forward(self, inputs: Inputs, result: Result) -> None:
        """Does what forward does in magi_attention.backends.register."""
        parts = self._parts()
        if not parts:
            result.out.zero_()
            result.lse.fill_(-torch.inf)
            return
        lse = result.lse.new_empty(result.lse.shape[::-1])
        parts[0].forward(inputs, result.out, lse)
        if len(parts) > 1:
            _merge(parts[1:], inputs, result.out, lse)
        result.lse.copy_(lse.T)

    def backward(self, inputs: Inputs, result: Result, gradients: Gradients) -> None:
        """Does what backward does in magi_attention.backends.register."""
        parts = self._parts()
        written = gradients.dq, gradients.dk, gradients.dv
        if not parts:
            for tensor in written:
                tensor.zero_()
            return
        # A row with lse -inf sees nothing: with any number instead its weights are 0.
        lse = result.lse.new_empty(result.lse.shape[::-1])
        torch.nan_to_num(result.lse.T, nan=torch.nan, posinf=torch.inf, neginf=0.0, out=lse)
        dlse = None if gradients.dlse is None else gradients.dlse.T.contiguous()
        sums = Sums(result.out, lse, gradients.dout, dlse)
        parts[0].backward(inputs, sums, written)
        if len(parts) > 1:
            _add(parts[1:], inputs, sums, written)


def register_peer(
    name: str,
    prepare: Callable[[Problem], PeerAttention],
    limits: Limits,
    devices: tuple[str, ...] = ("cuda",),
) -> None:
    """Adds a backend whose prepare gives a PeerAttention to the process."""
    forward, backward = PeerAttention.forward, PeerAttention.backward
    _registry.register(name, forward, backward, limits, prepare, devices)


def _merge(parts: list[_Part], inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Adds what further parts see; each part's out weighs as its share of exp(lse)."""
    whole = out.to(lse.dtype)
    more, more_lse = torch.empty_like(out), torch.empty_like(lse)
    for part in parts:
        part.forward(inputs, more, more_lse)
        total = torch.logaddexp(lse, more_lse)
        known = total.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=0.0)
        kept, added = (torch.exp(of - known).T.unsqueeze(-1) for of in (lse, more_lse))
        whole = whole * kept + more * added
        lse.copy_(total)
    out.copy_(whole)


def _add(parts: list[_Part], inputs: Inputs, sums: Sums, gradients: Sequence[torch.Tensor]) -> None:
    """Adds the gradients of further parts, in the type of sums."""
    totals = [gradient.to(sums.lse.dtype) for gradient in gradients]
    more = [torch.empty_like(gradient) for gradient in gradients]
    for part in parts:
        part.backward(inputs, sums, more)
        for total, one in zip(totals, more):
            total += one
    for gradient, total in zip(gradients, totals):
        gradient.copy_(total)
