# SPDX-License-Identifier: Apache-2.0
"""Attention backends: limits of the library's own, and one supplied from Python."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import backend_cases as cases
import dense
from magi_attention import backends
from magi_attention._native import vtable
from magi_attention.functional import _checks
from pipeline_cases import Case, make_tensors


@pytest.mark.parametrize("mask", ["varlen_causal", "four_types", "empty_rows", "nothing"])
@pytest.mark.parametrize("degree", [0, 1, 2])
def test_a_plan_of_two_ranks_runs_on_torch_operations(ranks, mask, degree):
    ranks.run(2, cases.runs_a_plan, Case(mask=mask, degree=degree))


def test_rows_of_moving_queries_are_aligned(ranks):
    case = Case(mask="causal", heads=(8, 8), dtype="float32", work="queries", degree=4)
    ranks.run(4, cases.rows_are_aligned, case)


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_through_lse_and_other_numbers_of_ranks(ranks, size):
    ranks.run(size, cases.runs_a_plan, Case(mask="causal", with_lse_gradient=True, scale=0.25))


def test_types_that_the_library_converts_around_it(ranks):
    ranks.run(2, cases.is_as_good_as_the_library, Case(mask="causal", dtype="bfloat16", degree=2))


@pytest.mark.parametrize(
    "limits, message",
    [(backends.Limits(dtypes=(torch.float32,)), "float32"),
     (backends.Limits(head_dim_qk=(8, 8, 8)), "head_dim_qk is 16")],
)  # fmt: skip
def test_limits_hold_on_every_rank(ranks, limits, message):
    ranks.run(2, cases.refuses, limits, message)


def test_limits_of_the_librarys_own():
    own = backends.limits()
    assert own == backends.limits("cpu")
    assert own.dtypes == (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    assert own.head_dim_qk[0] == 1 and own.has_sink and own.has_any_scale


def test_limits_of_a_supplied_one_come_back():
    limits = backends.Limits((8, 192, 8), (8, 128, 8), (torch.float32,), 16, has_softcap=True)
    cases.register(limits)
    try:
        assert backends.limits(cases.NAME) == limits
        with pytest.raises(ValueError, match="plain torch"):
            cases.register()
    finally:
        backends.unregister(cases.NAME)
    with pytest.raises(ValueError, match="allowed: cpu"):
        backends.limits(cases.NAME)


def one_rank(backend_name: str):
    case = Case()
    mask = dense.masks(case.rows)[case.mask]
    bound = cases.make_plan(mask, case, 1).bind(backend=backend_name)
    return bound, *(bound.dispatch(t) for t in make_tensors(case)[:3])


@pytest.mark.parametrize(
    "options, message",
    [({"softcap": 3.0}, "softcap is 3"), ({"return_max_logits": True}, "max_logits is given"),
     ({"sink": torch.zeros(1, 8, dtype=torch.float64)}, "sink is given")],
)  # fmt: skip
def test_what_the_limits_exclude_is_refused_by_name(options, message):
    cases.register(backends.Limits())
    try:
        bound, q, k, v = one_rank(cases.NAME)
        with pytest.raises(ValueError, match=message):
            bound.calc_attn(q, k, v, **options)
    finally:
        backends.unregister(cases.NAME)


def on_a_gpu(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that has no memory and names a GPU as its device."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda:0")


def test_checks_on_a_gpu_ask_the_named_backend(monkeypatch):
    """What the library's own kernels take does not limit a supplied backend, nor the reverse."""
    monkeypatch.setattr(_checks, "_DEVICES", ("cpu", "cuda"))
    q = on_a_gpu(4, 2, 200, dtype=torch.float32)

    def check(q):
        with FakeTensorMode():
            _checks.check_qkv(q, q, q, cases.NAME)

    cases.register(backends.Limits((1, 256, 1), (1, 256, 1), (torch.float32,)))
    try:
        check(q)
        with pytest.raises(TypeError, match="float16 on cuda:0; allowed: float32"):
            check(on_a_gpu(4, 2, 64, dtype=torch.float16))
    finally:
        backends.unregister(cases.NAME)
    check(q)  # bound plans go on
    cases.register(backends.Limits((8, 64, 8), (8, 64, 8), (torch.float32,)))
    try:
        with pytest.raises(ValueError, match="allowed: multiples of 8 up to 64"):
            check(q)
    finally:
        backends.unregister(cases.NAME)


class _Wordless(RuntimeError):
    def __str__(self):
        raise OSError


@pytest.mark.parametrize(
    "error, kind, text",
    [
        (
            ValueError("the moon is in the wrong house"),
            ValueError,
            "the moon is in the wrong house",
        ),
        (ValueError("a lone \udc80"), ValueError, r"a lone \\udc80"),  # what no UTF-8 has
        (OSError("caf\udce9"), RuntimeError, r"OSError: caf\\udce9"),
        (_Wordless(), RuntimeError, r"_Wordless: no text, as str\(\) of it raised OSError"),
    ],
)
def test_errors_of_its_functions_leave_the_call(error, kind, text):
    def fails(*_):
        raise error

    transport = vtable._Supplied(SimpleNamespace(
        rank=0, num_ranks=1, backend=b"", moves_device_memory=False, allgather=fails,
    ))  # fmt: skip
    assert transport.allgather(None, b"", 0, None, None) != 0
    assert re.search(text, transport.message.value.decode())
    for prepare in (None, fails):
        backends.register("failing", fails, fails, prepare=prepare)
        try:
            bound, q, k, v = one_rank("failing")
            with pytest.raises(kind, match=f"backend failing: {text}"):
                bound.calc_attn(q, k, v)
        finally:
            backends.unregister("failing")


def test_names_that_are_not_there():
    with pytest.raises(ValueError, match=r"^backend is 'nobody'; allowed: ffa, "):
        one_rank("nobody")
    with pytest.raises(ValueError, match="backend is cpu; allowed: one that was added"):
        backends.unregister("cpu")
    with pytest.raises(TypeError, match="forward is a int"):
        backends.register("number", 1, 2)
    with pytest.raises(ValueError, match="devices is"):
        backends.register("tpu", print, print, devices=("tpu",))
