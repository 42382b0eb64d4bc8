# SPDX-License-Identifier: Apache-2.0
"""Sides of bench/dist_attention.py on the ranks of a group, against dense float64 attention."""

from __future__ import annotations

import pathlib
import sys

import torch

import dense

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
if BENCH.exists():  # not where the tests are copied without the source tree
    sys.path.insert(0, str(BENCH))
    from distributed.cells import Options, random_tensors
    from distributed.links import Link
    from distributed.ours import parse_setting
    from distributed.sides import Makers, Problem, take

SHAPE = (8, 4, 16)
TOTAL = 96
TOLERANCE = 1e-9  # of float64 values of order 1


class Bands:
    """What dense.attention asks of a mask."""

    def __init__(self, slices, rows_q: int, rows_k: int) -> None:
        self._slices, self._shape = slices, (rows_q, rows_k)

    def multiplicity(self) -> torch.Tensor:
        counts = torch.zeros(self._shape, dtype=torch.float64)
        q, k = (torch.arange(n) for n in self._shape)
        diagonal = k[None, :] - q[:, None]
        for q0, q1, k0, k1, d_min, d_max in self._slices:
            rows = (q >= q0) & (q < q1)
            keys = (k >= k0) & (k < k1)
            band = (diagonal >= d_min) & (diagonal <= d_max)
            counts += rows[:, None] & keys[None, :] & band
        return counts


def options() -> Options:
    return Options(
        settings=[], baselines=[], shape=SHAPE, dtype=torch.float64, device=torch.device("cpu"),
        seconds=0.1, rounds=1, exposed=False,
    )  # fmt: skip


def dense_results(problem, tensors):
    """out, dq, dk, dv of the whole sequence."""
    *inputs, dout = tensors
    inputs = [t.clone().requires_grad_() for t in inputs]
    out = dense.attention(*inputs, Bands(problem.slices, problem.total, problem.total))[0]
    return [out.detach(), *torch.autograd.grad(out, inputs, dout)]


def side(group, name: str, mask: str) -> None:
    """A side's out and gradients are those of dense attention, twice, whatever was sent before."""
    makers, problem = Makers(group), Problem(mask, TOTAL, SHAPE)
    tensors = random_tensors(TOTAL, options())
    if name == "alone":
        made = makers.alone(problem, tensors)
    elif name.split("+")[0] in ("default", "degree0", "auto"):
        made = makers.ours(parse_setting(name), problem, tensors)
    else:
        made = makers.baseline(name, problem, tensors)
    wanted = dense_results(problem, tensors)
    q, k, v, dout = made.tensors
    for _ in range(2):
        out, saved = made.attention.forward(q, k, v)
        results = [out, *made.attention.backward(dout, saved)]
        count = sum(end - begin for begin, end in made.rows)
        for label, mine, whole in zip(("out", "dq", "dk", "dv"), results, wanted):
            error = (mine[:count] - take(whole, made.rows)).abs().max().item()
            assert error < TOLERANCE, f"{name}, {mask}: {label} is off by {error:.1e}"


def kernel(group, mask: str) -> None:
    """Our kernel on the rows and keys of calc_attn's placement gives its out."""
    makers, problem = Makers(group), Problem(mask, TOTAL, SHAPE)
    tensors = random_tensors(TOTAL, options())
    ours = makers.ours(parse_setting("default"), problem, tensors)
    made = makers.kernel_of(ours.rows, problem, tensors)
    out, _ = made.attention.forward(*made.tensors[:3])
    wanted = take(dense_results(problem, tensors)[0], ours.rows)
    assert (out - wanted).abs().max().item() < TOLERANCE


def bytes_sent(group, name: str) -> tuple[int, int]:
    """Of the forward and the backward of a baseline; a muted link counts the same."""
    makers, problem = Makers(group), Problem("full", TOTAL, SHAPE)
    made = makers.baseline(name, problem, random_tensors(TOTAL, options()))
    q, k, v, dout = made.tensors
    counts = []
    for is_muted in (False, True):
        Link.is_muted = is_muted
        start = made.attention.bytes_sent
        _, saved = made.attention.forward(q, k, v)
        middle = made.attention.bytes_sent
        made.attention.backward(dout, saved)
        counts.append((middle - start, made.attention.bytes_sent - middle))
    Link.is_muted = False
    assert counts[0] == counts[1]
    return counts[0]


def planned_bytes(group) -> tuple[int, int]:
    """Of this rank; and rows that it receives."""
    makers, problem = Makers(group), Problem("causal", TOTAL, SHAPE)
    ours = makers.ours(parse_setting("default"), problem, random_tensors(TOTAL, options()))
    received = ours.attention.bound.plan.report.remote_rows[makers.rank]
    return ours.attention.planned_bytes(2), received
