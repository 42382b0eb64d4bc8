# SPDX-License-Identifier: Apache-2.0
"""Backends of other packages with stand-ins in the place of their kernels: cases that ranks run."""

from __future__ import annotations

import contextlib
import os
import types
from unittest import mock

import torch

import backend_cases
import dense
import peer_reference
from magi_attention import api, backends
from magi_attention.backends import _cudnn, _fa4, _flex, _table
from pipeline_cases import (
    TOLERANCE,
    Case,
    check_close,
    expected,
    make_key,
    make_tensors,
    visible_lse,
)

MODULES = {"cudnn": _cudnn, "fa4": _fa4, "flex": _flex}
VARIABLE = "MAGI_ATTENTION_KERNEL_BACKEND"


@contextlib.contextmanager
def registered(name: str, device: str = "cpu"):
    """The backend for tensors of any type and head dim in host memory, on stand-ins; on a GPU as
    it is.
    """
    if device == "cuda":
        yield _table.ensure(name)
        return
    limits = backends.Limits(has_dlse=True)
    with peer_reference.stand_ins():
        MODULES[name].register(limits=limits, devices=("cpu",))
        _fa4.interval_mask.cache_clear()
        try:
            yield
        finally:
            backends.unregister(name)
            _fa4.interval_mask.cache_clear()


@contextlib.contextmanager
def chosen(name: str, device: str = "cpu"):
    """The backend by the environment."""
    with registered(name, device), mock.patch.dict(os.environ, {VARIABLE: name}):
        yield


def through_a_key(
    group, name: str, case: Case, tolerance: float = TOLERANCE, device: str = "cpu"
) -> None:
    """calc_attn, against dense float64 attention."""
    mask = dense.masks(case.rows)[case.mask]
    tensors = make_tensors(case)
    dtype = getattr(torch, case.dtype)
    with chosen(name, device):
        key = make_key(mask, case, group)
        assert key._local_shape.backend == name
        bound = types.SimpleNamespace(
            dispatch=lambda t: api.dispatch(t, key),
            undispatch=lambda t: api.undispatch(t, key),
            calc_attn=lambda *qkv: api.calc_attn(*qkv, key),
        )
        out, lse, gradients = backend_cases.attend(bound, case, tensors, device)
    api.clear_cache(group)
    rounded = tuple(None if t is None else t.to(dtype).double() for t in tensors)
    wanted_out, wanted_lse, _, wanted = expected(mask, case, rounded)
    place = wanted_out.device  # ranks on GPUs make tensors there by default
    check_close("out", out.to(place), wanted_out, tolerance)
    check_close("lse", visible_lse(lse.to(place)), visible_lse(wanted_lse), tolerance)
    for what, found, gradient in zip(("dq", "dk", "dv"), gradients, wanted):
        check_close(what, found.to(place), gradient, tolerance)


def random_slices(generator: torch.Generator, rows: int, keys: int) -> torch.Tensor:
    """Of all kinds; some overlap, some are empty, some show nothing. int32 [slices, 6]."""

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    slices = []
    for _ in range(number(0, 6)):
        q0, q1 = sorted((number(0, rows), number(0, rows)))
        k0, k1 = sorted((number(0, keys), number(0, keys)))
        low, high = -(1 << 30), 1 << 30
        kind = number(0, 4)
        if kind in (1, 3):
            high = k1 - q1
        if kind in (2, 3):
            low = k0 - q0
        if kind == 4:
            low, high = sorted((number(-rows, keys), number(-rows, keys)))
        slices.append((q0, q1, k0, k1, low, high))
    return torch.tensor(slices, dtype=torch.int32).view(-1, 6)


def random_documents(generator: torch.Generator, rows: int, keys: int) -> torch.Tensor:
    """Slices one behind the other, with gaps: all full, all causal or with one window."""

    def cuts(most: int, count: int) -> list[int]:
        return torch.randint(0, most + 1, (count,), generator=generator).sort().values.tolist()

    count = 2 * int(torch.randint(1, 5, (), generator=generator))
    kind = int(torch.randint(0, 4, (), generator=generator))
    left, right = torch.randint(0, 20, (2,), generator=generator).tolist()
    left = left if kind > 1 else 1 << 29
    right = (1 << 29, 0, 0, right)[kind]
    q, k = cuts(rows, count), cuts(keys, count)
    slices = [
        (q0, q1, k0, k1, k1 - q1 - left, k1 - q1 + right)
        for q0, q1, k0, k1 in zip(q[::2], q[1::2], k[::2], k[1::2])
    ]
    order = torch.randperm(len(slices), generator=generator)
    return torch.tensor(slices, dtype=torch.int32)[order]


def problem_of(slices, tensors, is_backward: bool) -> backends.Problem:
    q, k, v = tensors
    return backends.Problem(
        slices, tuple(q.shape), tuple(k.shape), tuple(v.shape), q.dtype, q.device, is_backward,
        False, 0,
    )  # fmt: skip


def run(functions: tuple, slices, inputs, upstream, whole=None):
    """out, lse, dq, dk, dv by prepare, forward and backward. whole: out and lse over more keys than
    those of the slices.
    """
    prepare, forward, backward = functions
    q, k, v = inputs[:3]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    results = backends.Result(
        q.new_full((*q.shape[:2], v.shape[2]), torch.nan),
        q.new_full(q.shape[:2], torch.nan, dtype=wide),
        None,
    )
    forward(prepare(problem_of(slices, inputs[:3], False)), inputs, results)
    gradients = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    backward(
        prepare(problem_of(slices, inputs[:3], True)), inputs, whole or results,
        backends.Gradients(*upstream, *gradients, None),
    )  # fmt: skip
    return (*results[:2], *gradients)


def is_right(
    name: str, slices, shape: tuple, generator: torch.Generator, device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> None:  # fmt: skip
    """One problem, forward and backward, whose rows see more keys elsewhere."""
    rows, keys, heads_q, heads_kv, dim, dim_v = shape
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def random(*sizes, dtype=dtype):
        made = torch.randn(*sizes, generator=generator, dtype=torch.float64)
        return made.to(device, dtype)

    def inputs_of(tensors):
        return backends.Inputs(*tensors, None, 0.5 * dim**-0.5, 0.0, 0)

    tensors = random(rows, heads_q, dim), random(keys, heads_kv, dim), random(keys, heads_kv, dim_v)
    dlse = random(rows, heads_q, dtype=wide) if generator.initial_seed() % 2 else None
    upstream = random(rows, heads_q, dim_v), dlse
    exact = inputs_of([t.double() for t in tensors])
    exact_upstream = tuple(None if t is None else t.double() for t in upstream)
    reference = backend_cases.prepare, backend_cases.forward, backend_cases.backward
    wanted = run(reference, slices, exact, exact_upstream)
    more = random(rows, heads_q).double().abs()
    whole = backends.Result(
        (wanted[0] * 0.7 + 0.1).to(dtype), torch.logaddexp(wanted[1], more).to(wide), None
    )
    exact_whole = backends.Result(whole.out.double(), whole.lse.double(), None)
    wanted = run(reference, slices, exact, exact_upstream, exact_whole)
    module = MODULES[name]
    functions = module.prepare, module.PeerAttention.forward, module.PeerAttention.backward
    found = run(functions, slices, inputs_of(tensors), upstream, whole)
    for what, one, other in zip(("out", "lse", "dq", "dk", "dv"), found, wanted):
        finite = other[other.isfinite()]
        scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
        eps = torch.finfo(dtype).eps * scale
        check_close(what, one, other, 1e-9 * scale if dtype == torch.float64 else 4 * eps)
