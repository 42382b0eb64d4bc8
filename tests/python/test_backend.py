# SPDX-License-Identifier: Apache-2.0
"""Attention backends: limits of the library's own, and one supplied from Python."""

import pytest
import torch

import backend_cases as cases
import dense
from magi_attention import backends
from pipeline_cases import Case, make_tensors


@pytest.mark.parametrize("mask", ["varlen_causal", "four_types", "empty_rows", "nothing"])
@pytest.mark.parametrize("degree", [0, 1, 2])
def test_a_plan_of_two_ranks_runs_on_torch_operations(ranks, mask, degree):
    ranks.run(2, cases.runs_a_plan, Case(mask=mask, degree=degree))


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_through_lse_and_other_numbers_of_ranks(ranks, size):
    ranks.run(size, cases.runs_a_plan, Case(mask="causal", with_lse_gradient=True, scale=0.25))


def test_types_that_the_library_converts_around_it(ranks):
    ranks.run(2, cases.is_as_good_as_the_library, Case(mask="causal", dtype="bfloat16", degree=2))


def test_limits_hold_on_every_rank(ranks):
    ranks.run(2, cases.refuses)


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


def test_errors_of_its_functions_leave_the_call():
    def fails(*_):
        raise ValueError("the moon is in the wrong house")

    backends.register("failing", fails, fails)
    try:
        bound, q, k, v = one_rank("failing")
        with pytest.raises(ValueError, match="backend failing: the moon is in the wrong house"):
            bound.calc_attn(q, k, v)
    finally:
        backends.unregister("failing")


def test_names_that_are_not_there():
    bound, q, k, v = one_rank("nobody")
    with pytest.raises(ValueError, match="backend is nobody; allowed: cpu"):
        bound.calc_attn(q, k, v)
    with pytest.raises(ValueError, match="backend is cpu; allowed: one that was added"):
        backends.unregister("cpu")
    with pytest.raises(TypeError, match="forward is a int"):
        backends.register("number", 1, 2)
    with pytest.raises(ValueError, match="devices is"):
        backends.register("tpu", print, print, devices=("tpu",))
