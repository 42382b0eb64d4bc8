# SPDX-License-Identifier: Apache-2.0
"""Attention backends: limits of the library's own, and one supplied from Python."""

import json
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
from pipeline_cases import Case, expected, make_tensors
from ranks import over, refuses


@pytest.mark.parametrize("mask", ["varlen_causal", "four_types", "empty_rows", "nothing"])
@pytest.mark.parametrize("degree", [0, 1, 2])
def test_a_plan_of_two_ranks_runs_on_torch_operations(ranks, mask, degree):
    ranks.run(2, cases.runs_a_plan, Case(mask=mask, degree=degree))


@over(4)
def test_rows_of_moving_queries_are_aligned(group):
    """Rows of every tensor that attention is given begin at multiples of 16 bytes, as loads of a
    GPU ask for; out and lse of received queries travel side by side only where that holds.
    """

    def check(*tensors: torch.Tensor) -> None:
        for tensor in tensors:
            assert tensor.stride(0) * tensor.element_size() % 16 == 0, tensor.stride()
            assert tensor.stride(1) * tensor.element_size() % 16 == 0, tensor.stride()
        cases.calls.append("checked")

    def forward_checked(counts, inputs, result) -> None:
        check(inputs.q, inputs.k, inputs.v, result.out)
        cases.forward(counts, inputs, result)

    def backward_checked(counts, inputs, result, gradients) -> None:
        check(inputs.q, inputs.k, inputs.v, result.out)
        cases.backward(counts, inputs, result, gradients)

    case = Case(mask="causal", heads=(8, 8), dtype="float32", work="queries", degree=4)
    mask = dense.masks(case.rows)[case.mask]
    cases.calls.clear()
    with cases.registered(forward=forward_checked, backward=backward_checked):
        bound = cases.make_plan(mask, case, group.size()).bind(group, backend=cases.NAME)
        assert any(len(rank["q"]) > 1 for rank in json.loads(bound.plan.to_json())["ranks"])
        cases.attend(bound, case, make_tensors(case))
    assert cases.calls.count("checked") > 2


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_through_lse_and_other_numbers_of_ranks(ranks, size):
    ranks.run(size, cases.runs_a_plan, Case(mask="causal", with_lse_gradient=True, scale=0.25))


@over(2)
def test_types_that_the_library_converts_around_it(group):
    """In 16 bits its error against float64 is that of the library's own backend."""
    case = Case(mask="causal", dtype="bfloat16", degree=2)
    mask = dense.masks(case.rows)[case.mask]
    tensors = make_tensors(case)
    rounded = tuple(
        None if t is None else t.to(getattr(torch, case.dtype)).double() for t in tensors
    )
    wanted = expected(mask, case, rounded)
    plan = cases.make_plan(mask, case, group.size())
    with cases.registered():
        supplied = cases.attend(plan.bind(group, backend=cases.NAME), case, tensors)
    own = cases.attend(plan.bind(group), case, tensors)

    def errors(found):
        pairs = zip((found[0], *found[2]), (wanted[0], *wanted[3]))
        return [(a.double() - b).norm().item() for a, b in pairs]

    for mine, other in zip(errors(supplied), errors(own)):
        assert mine <= 2 * other + 1e-3


@over(2)
@pytest.mark.parametrize(
    "limits, message",
    [(backends.Limits(dtypes=(torch.float32,)), "float32"),
     (backends.Limits(head_dim_qk=(8, 8, 8)), "head_dim_qk is 16")],
)  # fmt: skip
def test_limits_hold_on_every_rank(group, limits, message):
    """Before rows move."""
    case = Case(head_dim=16)
    mask = dense.masks(case.rows)[case.mask]
    q, k, v, *_ = make_tensors(case)
    with cases.registered(limits):
        bound = cases.make_plan(mask, case, group.size()).bind(group, backend=cases.NAME)
        local = [bound.dispatch(t) for t in (q, k, v)]
        refuses(lambda: bound.calc_attn(*local), ValueError, message)


def test_limits_of_the_librarys_own():
    own = backends.limits()
    assert own == backends.limits("cpu")
    assert own.dtypes == (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    assert own.head_dim_qk[0] == 1 and own.has_sink and own.has_any_scale


def test_limits_of_a_supplied_one_come_back():
    limits = backends.Limits((8, 192, 8), (8, 128, 8), (torch.float32,), 16, has_softcap=True)
    with cases.registered(limits):
        assert backends.limits(cases.NAME) == limits
        with pytest.raises(ValueError, match="plain torch"), cases.registered():
            pass
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
    with cases.registered(backends.Limits()):
        bound, q, k, v = one_rank(cases.NAME)
        with pytest.raises(ValueError, match=message):
            bound.calc_attn(q, k, v, **options)


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

    with cases.registered(backends.Limits((1, 256, 1), (1, 256, 1), (torch.float32,))):
        check(q)
        with pytest.raises(TypeError, match="float16 on cuda:0; allowed: float32"):
            check(on_a_gpu(4, 2, 64, dtype=torch.float16))
    check(q)  # bound plans go on
    with cases.registered(backends.Limits((8, 64, 8), (8, 64, 8), (torch.float32,))):
        refuses(lambda: check(q), ValueError, "allowed: multiples of 8 up to 64")


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
        with cases.registered(forward=fails, backward=fails, prepare=prepare):
            bound, q, k, v = one_rank(cases.NAME)
            with pytest.raises(kind, match=f"backend {cases.NAME}: {text}"):
                bound.calc_attn(q, k, v)


def test_names_that_are_not_there():
    with pytest.raises(ValueError, match=r"^backend is 'nobody'; allowed: ffa, "):
        one_rank("nobody")
    with pytest.raises(ValueError, match="backend is cpu; allowed: one that was added"):
        backends.unregister("cpu")
    with pytest.raises(TypeError, match="forward is a int"):
        backends.register("number", 1, 2)
    with pytest.raises(ValueError, match="devices is"):
        backends.register("tpu", print, print, devices=("tpu",))
