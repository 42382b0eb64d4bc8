# SPDX-License-Identifier: Apache-2.0
"""What is read by its address must have one: other tensors are refused by the argument's name, or
mean what torch says they mean.
"""

import pytest
import torch

import plain_cases as cases
from magi_attention import Plan, api, masks
from magi_attention.api import flex_flash_attn_func
from magi_attention.common import AttnRanges
from magi_attention.functional._operators import flex_backward_op, flex_forward_op
from plain_cases import KINDS, freed, is_refused, nested

ROWS = 6


def good():
    ranges = torch.tensor([[0, ROWS]], dtype=torch.int32)
    random = torch.Generator().manual_seed(0)
    q = torch.randn(ROWS, 4, 8, generator=random)
    k, v = (torch.randn(ROWS, 2, 8, generator=random) for _ in range(2))
    return {
        "q": q, "k": k, "v": v, "sink": torch.randn(1, 4, generator=random), "q_ranges": ranges,
        "k_ranges": ranges.clone(), "attn_type_map": torch.zeros(1, dtype=torch.int32),
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(good()))
@pytest.mark.parametrize("change", KINDS, ids=lambda change: change.__name__)
def test_flex(change, name):
    given = good()
    flex_flash_attn_func(**given)
    given[name] = change(given[name])
    is_refused(lambda: flex_flash_attn_func(**given), name, KINDS[change])


@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
def test_flex_with_gradients(name):
    """A parameter whose storage is freed is still a parameter that wants a gradient."""
    given = {n: t.requires_grad_() if n in ("q", "k", "v", "sink") else t
             for n, t in good().items()}  # fmt: skip
    given[name] = torch.nn.Parameter(freed(given[name]))
    is_refused(lambda: flex_flash_attn_func(**given), name, KINDS[freed])


@pytest.mark.parametrize(
    "change", [kind for kind in KINDS if kind is not nested], ids=lambda change: change.__name__
)
@pytest.mark.parametrize("result", ["out", "lse"])
@pytest.mark.parametrize("has_sink", [False, True])
def test_gradients_of_flex(has_sink, result, change):
    given = good()
    given["q"].requires_grad_()
    out, meta = flex_flash_attn_func(**{**given, "sink": given["sink"] if has_sink else None})
    found = out if result == "out" else meta.lse
    is_refused(lambda: found.backward(change(found)), f"the gradient of {result}", KINDS[change])


@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
def test_memory_freed_between_forward_and_backward(name):
    """As FSDP does with the weights of a child that its parent reads."""
    given = good()
    for n in ("q", "k", "v", "sink"):
        given[n].requires_grad_()
    out, _ = flex_flash_attn_func(**given)
    given[name].untyped_storage().resize_(0)
    is_refused(lambda: out.sum().backward(), name, KINDS[freed])


@pytest.mark.parametrize("name", sorted(good()))
def test_compiled(name):
    """A graph is run with what it is given, too."""
    given = good()
    call = torch.compile(flex_flash_attn_func, fullgraph=True, backend="aot_eager")
    assert torch.equal(call(**given)[0], flex_flash_attn_func(**given)[0])
    given[name].untyped_storage().resize_(0)
    is_refused(lambda: call(**given), name, KINDS[freed])


@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
def test_operators(name):
    given = good()
    tensors = {n: given[n] for n in ("q", "k", "v", "sink")}
    ranges = [given[n] for n in ("q_ranges", "k_ranges", "attn_type_map")]

    def run(q, k, v, sink):
        return flex_forward_op(q, k, v, *ranges, sink, 0.0, 0.0, 0, False, 0)

    out, lse, _ = run(**tensors)
    tensors[name] = freed(tensors[name])
    is_refused(lambda: run(**tensors), name, KINDS[freed])
    q, k, v, sink = tensors.values()
    arguments = (out, lse, q, k, v, out, lse, *ranges, sink, 0.0, 0.0, 0, 0, False)
    is_refused(lambda: flex_backward_op(*arguments), name, KINDS[freed])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "case",
    [cases.calls_with_keys, cases.gradients_with_keys, cases.group_collectives,
     cases.distributed_tensors, cases.lazy_values],
)  # fmt: skip
def test_over_ranks(ranks, size, case):
    ranks.run(size, case)


@pytest.mark.parametrize("change", [freed, cases.fake, cases.zeros])
def test_bounds_and_matrices(change):
    bounds = torch.tensor([0, 4, 8])
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        given = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds, name: change(bounds)}
        is_refused(lambda: api.infer_attn_mask_from_cu_seqlens(**given), name, KINDS[change])
    matrix = change(torch.ones(3, 3))
    is_refused(lambda: masks.from_matrix(matrix), "visible", KINDS[change])


def test_other_kinds_of_tensors():
    given = good()
    scaled = torch.quantize_per_tensor(given["q"], 0.1, 0, torch.quint8)
    ranges = AttnRanges.from_ranges([(0, ROWS)])
    bound = Plan.from_ranges(
        ranges, ranges, "full", ROWS, cp_size=1, num_heads_q=4, num_heads_kv=2, head_dim=8
    ).bind()
    for call, error, text in (
        (lambda: flex_flash_attn_func(**{**given, "q": scaled}), TypeError, "q is quantised"),
        (lambda: flex_flash_attn_func(**{**given, "sink": scaled}), TypeError, "sink is quantised"),
        (lambda: bound.dispatch(scaled), TypeError, "x is quantised"),
        (lambda: bound.dispatch(scaled.int_repr().to("meta")), RuntimeError, "x is on meta"),
        (lambda: bound.roll(given["q"].to_mkldnn(), 1), ValueError, "x has layout torch._mkldnn"),
    ):
        with pytest.raises(error, match=text):
            call()


class _Named(torch.Tensor):
    """A subclass that changes no operator, as data sets and vision libraries have."""


class _Weight(torch.nn.Parameter):
    """A parameter with attributes of its own, as loaders of checkpoints make."""


@pytest.mark.parametrize("name", ["q", "k", "v", "sink", "q_ranges", "attn_type_map"])
def test_subclasses_that_change_no_operator(name):
    given = good()
    wanted = flex_flash_attn_func(**given)[0]
    for kind in (torch.nn.Parameter, _Weight):
        if given[name].is_floating_point():
            leaf = kind(given[name])
            out = flex_flash_attn_func(**{**given, name: leaf})[0]
            assert torch.equal(out.detach(), wanted)
            out.sum().backward()
            assert leaf.grad.isfinite().all()
    out = flex_flash_attn_func(**{**given, name: given[name].as_subclass(_Named)})[0]
    assert torch.equal(out.as_subclass(torch.Tensor), wanted)


def test_torch_functions_and_modes():
    """Modes that only look on change nothing."""
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode

    class Counted(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    given = good()
    wanted = flex_flash_attn_func(**given)[0]
    for mode in (Counted(), FlopCounterMode(display=False), torch.inference_mode()):
        with mode:
            assert torch.equal(flex_flash_attn_func(**given)[0], wanted)
            lost = {**given, "sink": freed(given["sink"])}
            is_refused(lambda: flex_flash_attn_func(**lost), "sink", KINDS[freed])


@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
def test_values_that_are_negated_lazily(name):
    """As the imaginary part of a conjugate: a view of memory with the other sign."""
    given = good()
    negated = torch._neg_view(-given[name])
    assert negated.is_neg() and torch.equal(negated, given[name])
    wanted = flex_flash_attn_func(**given)[0]
    assert torch.equal(flex_flash_attn_func(**{**given, name: negated})[0], wanted)


def test_tensors_without_elements():
    """They need no memory."""
    empty = torch.zeros(0, 2, dtype=torch.int32)
    q, kv = torch.zeros(0, 4, 8, requires_grad=True), torch.zeros(0, 2, 8)
    out, _ = flex_flash_attn_func(q, kv, kv, empty, empty)
    assert out.shape == (0, 4, 8)
    out.sum().backward()
    assert q.grad.shape == q.shape
