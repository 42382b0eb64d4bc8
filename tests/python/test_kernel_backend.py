# SPDX-License-Identifier: Apache-2.0
"""Backends by MAGI_ATTENTION_KERNEL_BACKEND: who uses them, and what they refuse by name."""

import pytest
import torch

import backend_cases
import dense
import peer_cases as cases
import peer_reference
from magi_attention import backends
from magi_attention.api import flex_flash_attn_func
from magi_attention.backends import _fa4, _flex, torch_attention
from magi_attention.functional import ffa_fa4_func
from magi_attention.functional._checks import check_sm_margin
from magi_attention.functional.kernel_backend import backend_of_environment
from magi_attention.integrations._mask_spec import AttnMaskSpec
from magi_attention.integrations._model_plans import make_plan
from pipeline_cases import Case, check_close, expected, make_tensors, visible_lse

NAMES = pytest.mark.parametrize("name", ["cudnn", "fa4", "flex"])
ROWS = 131
RANGE = torch.tensor([[0, 8]], dtype=torch.int32)


def ranges_of(mask: dense.Mask) -> list[torch.Tensor]:
    found = (mask.q_ranges, mask.k_ranges, mask.types)
    return [torch.tensor(numbers, dtype=torch.int32) for numbers in found]


def agrees(function, case: Case) -> None:
    """out, lse and gradients of a function of q, k, v and ranges."""
    mask = dense.masks(case.rows)[case.mask]
    tensors = make_tensors(case)
    q, k, v = (t.clone().requires_grad_() for t in tensors[:3])
    out, meta = function(q, k, v, *ranges_of(mask))
    (out * tensors[4]).sum().backward()
    wanted_out, wanted_lse, _, wanted = expected(mask, case, tensors)
    check_close("out", out, wanted_out, 1e-9)
    check_close("lse", visible_lse(meta.lse), visible_lse(wanted_lse), 1e-9)
    for name, leaf, gradient in zip(("dq", "dk", "dv"), (q, k, v), wanted):
        check_close(name, leaf.grad, gradient, 1e-9)


@NAMES
@pytest.mark.parametrize("mask", ["varlen_causal", "block_causal_q_overlap"])
def test_on_one_device(name, mask):
    with cases.chosen(name):
        agrees(flex_flash_attn_func, Case(mask=mask, rows=ROWS))


def test_a_name_that_is_given_to_another_backend(monkeypatch):
    q = torch.randn(8, 2, 8)
    monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "sdpa")
    wanted, _ = flex_flash_attn_func(q, q, q, RANGE, RANGE)

    def ones(problem, inputs, result):
        result.out.fill_(1)
        result.lse.fill_(0)

    backends.unregister("torch")
    backends.register("torch", ones, ones, backends.Limits(has_float_outputs=True))
    try:
        assert torch.equal(flex_flash_attn_func(q, q, q, RANGE, RANGE)[0], torch.ones(8, 2, 8))
    finally:
        backends.unregister("torch")
    assert torch.equal(flex_flash_attn_func(q, q, q, RANGE, RANGE)[0], wanted)


def test_each_call_reads_the_variable():
    q = torch.randn(8, 2, 8, requires_grad=True)
    peer_reference.fa4_forms.clear()
    flex_flash_attn_func(q, q, q, RANGE, RANGE)
    assert not peer_reference.fa4_forms
    with cases.chosen("fa4"):
        out, _ = flex_flash_attn_func(q, q, q, RANGE, RANGE)
        assert peer_reference.fa4_forms == {"whole"}
        out.sum().backward()
    assert backend_of_environment() is None


def test_in_compiled_graphs():
    with cases.chosen("fa4"):
        attend = torch.compile(flex_flash_attn_func, fullgraph=True, backend="aot_eager")
        peer_reference.fa4_forms.clear()
        agrees(attend, Case(mask="varlen_causal", rows=ROWS))
        assert peer_reference.fa4_forms


def test_under_its_own_name_where_it_can():
    q = torch.randn(8, 2, 8)
    peer_reference.fa4_forms.clear()
    ffa_fa4_func(q, q, q, RANGE, RANGE)
    with cases.registered("fa4"):
        ffa_fa4_func(q, q, q, RANGE, RANGE, softcap=2.0)
        ffa_fa4_func(q, q, q, RANGE, RANGE, deterministic=True)
        ffa_fa4_func(q, q, q, RANGE, RANGE, softmax_scale=-0.1)
        assert not peer_reference.fa4_forms
        agrees(ffa_fa4_func, Case(mask="varlen_causal", rows=ROWS))
        assert peer_reference.fa4_forms == {"packed"}


@NAMES
@pytest.mark.parametrize(
    "options, message",
    [({"softcap": 3.0}, "softcap is 3"), ({"return_max_logits": True}, "max_logits is given"),
     ({"sink": torch.zeros(1, 2)}, "sink is given"), ({"sm_margin": 8}, "sm_margin is 8 with"),
     ({"softmax_scale": -1.0}, "softmax_scale is -1")],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name(name, options, message):
    q = torch.randn(8, 2, 8)
    with cases.chosen(name), pytest.raises((ValueError, NotImplementedError), match=message):
        flex_flash_attn_func(q, q, q, RANGE, RANGE, **options)


@pytest.mark.parametrize("name", [None, "mma"])
def test_the_library_leaves_multiprocessors_to_others(name):
    """Both families of its kernels do; a registered backend cannot be asked to."""
    check_sm_margin(8, name)
    with pytest.raises(NotImplementedError, match="sm_margin is 8 with backend own; allowed: 0"):
        check_sm_margin(8, "own")


@pytest.mark.parametrize("name", ["fa4", "flex"])
def test_gradients_that_repeat(name, monkeypatch):
    q = torch.randn(8, 2, 8, requires_grad=True)
    with cases.chosen(name):
        with pytest.raises(ValueError, match=f"deterministic is True with backend {name}"):
            flex_flash_attn_func(q, q, q, RANGE, RANGE, deterministic=True)
        monkeypatch.setenv("MAGI_ATTENTION_DETERMINISTIC_MODE", "1")
        with pytest.raises(ValueError, match="MAGI_ATTENTION_DETERMINISTIC_MODE is 1 with"):
            backend_of_environment()
    with cases.chosen("cudnn"):
        flex_flash_attn_func(q, q, q, RANGE, RANGE, deterministic=True)[0].sum().backward()
        assert backend_of_environment() == "cudnn"


def test_a_machine_without_it_is_told_so(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("this machine may serve it")
    q = torch.randn(8, 2, 8)
    for name in ("fa4", "cudnn", "flex"):
        monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", name)
        with pytest.raises(RuntimeError, match=f"^backend is {name}, but .*; allowed: ffa, sdpa$"):
            flex_flash_attn_func(q, q, q, RANGE, RANGE)
        with pytest.raises(RuntimeError, match=f"^backend is {name}, but "):
            backend_of_environment()


CASE = Case(rows=60)


@pytest.fixture
def plan():
    return backend_cases.make_plan(dense.masks(60)["causal"], CASE, 1)


def test_a_plan_names_it(plan):
    bound = plan.bind(backend=torch_attention.NAME)
    q, k, v = (bound.dispatch(t) for t in make_tensors(CASE)[:3])
    bound.calc_attn(q, k, v)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="backend is fa4, but"):
            plan.bind(backend="fa4")
    with cases.registered("fa4"):
        peer_reference.fa4_forms.clear()
        plan.bind(backend="fa4").calc_attn(q, k, v)
        assert peer_reference.fa4_forms


def test_a_plan_takes_the_values_of_the_variable_and_refuses_other_names(plan):
    tensors = make_tensors(CASE)[:3]
    expected, _ = plan.bind(backend=torch_attention.NAME).calc_attn(*tensors)
    for value in ("sdpa", "sdpa_ol"):
        out, _ = plan.bind(backend=value).calc_attn(*tensors)
        assert torch.equal(out, expected)
    with pytest.raises(ValueError, match=r"^backend is 'flash'; allowed: ffa, cutedsl, mma, "):
        plan.bind(backend="flash")
    plan.bind(backend="cpu")  # the library's own name of a backend
    with backend_cases.registered():
        plan.bind(backend=backend_cases.NAME)
    with pytest.raises(ValueError, match=f"^backend is '{backend_cases.NAME}'; allowed"):
        plan.bind(backend=backend_cases.NAME)


def test_a_bound_plan_follows_the_variable(plan, monkeypatch):
    tensors = make_tensors(CASE)[:3]
    choices = [("fa4", {}, {"packed"}), ("fa4", {"backend": "ffa"}, set()),
               ("ffa", {}, set()), ("ffa", {"backend": "fa4"}, {"packed"})]  # fmt: skip
    for name, options, forms in choices:
        with cases.registered("fa4"):
            monkeypatch.setenv(cases.VARIABLE, name)
            bound = plan.bind(**options)
            monkeypatch.delenv(cases.VARIABLE)
            peer_reference.fa4_forms.clear()
            bound.calc_attn(*(bound.dispatch(t) for t in tensors))
            assert peer_reference.fa4_forms == forms, (name, options)
    monkeypatch.setenv(cases.VARIABLE, "sdpa")
    with pytest.raises(ValueError, match="exchange_sms is 4 with backend torch"):
        plan.bind(exchange_sms=4)
    monkeypatch.setenv(cases.VARIABLE, "fa7")
    with pytest.raises(ValueError, match="MAGI_ATTENTION_KERNEL_BACKEND is 'fa7'"):
        plan.bind()
    of_old_name, own = plan.bind(backend="cutedsl"), plan.bind(backend="ffa")
    assert of_old_name.attention.local_shape == own.attention.local_shape


def test_a_bound_plan_of_another_backend_takes_no_lists(plan):
    q, k, v = make_tensors(CASE)[:3]
    lists = torch.zeros(60, k.shape[1], 1, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="backend torch takes no lists"):
        plan.bind(backend=torch_attention.NAME).calc_sparse_attn(q, k, v, lists)
    with cases.chosen("fa4"):
        plan.bind(backend="ffa").calc_sparse_attn(q, k, v, lists)


def test_adapters_without_a_group_follow_the_variable():
    spec, heads = AttnMaskSpec.causal(40), (4, 2, 16)
    with cases.chosen("fa4"):
        assert make_plan(spec, heads, None).attention.local_shape.backend == "fa4"
    assert make_plan(spec, heads, None).attention.local_shape.backend is None


def problem(heads_q=4, heads_kv=2, dim=64, dim_v=64, is_deterministic=False):
    slices = torch.tensor([[0, 8, 0, 8, -(1 << 30), 0]], dtype=torch.int32)
    shapes = (8, heads_q, dim), (8, heads_kv, dim), (8, heads_kv, dim_v)
    place = torch.bfloat16, torch.device("cpu"), True, is_deterministic, 0
    return backends.Problem(slices, *shapes, *place)


def test_head_dims_that_kernels_do_not_have(monkeypatch):
    cudnn = cases.MODULES["cudnn"]
    cudnn.prepare(problem(dim=192, dim_v=128))
    with pytest.raises(ValueError, match="is 192 and 192 with backend cudnn; allowed: up to 128, "
                                         "or 192 and 128, 256 and 256"):  # fmt: skip
        cudnn.prepare(problem(dim=192, dim_v=192))
    _fa4.prepare(problem(dim=192, dim_v=192))
    with pytest.raises(ValueError, match="head_dim of v is 128 with backend fa4 and fewer heads"):
        _fa4.prepare(problem(dim=192, dim_v=128))
    monkeypatch.setattr(_fa4, "_major", lambda device: 10)
    _fa4.prepare(problem(dim=192, dim_v=128))
    with pytest.raises(ValueError, match="is 256 and 256 with backend fa4"):
        _fa4.prepare(problem(dim=256, dim_v=256))
    for peer in (_fa4, _flex):
        with pytest.raises(ValueError, match=f"deterministic is True with backend {peer.NAME}"):
            peer.prepare(problem(is_deterministic=True))
