# SPDX-License-Identifier: Apache-2.0
"""What is read by its address must have one: other tensors are refused by the argument's name, or
mean what torch says they mean.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import dense
from magi_attention import Plan, api, masks
from magi_attention.api import flex_flash_attn_func
from magi_attention.comm.primitive.grpcoll import group_cast, group_reduce
from magi_attention.common import AttnRanges
from magi_attention.functional._operators import flex_backward_op, flex_forward_op
from pipeline_cases import Case, make_key, make_tensors
from ranks import over, refuses


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """As FSDP leaves a parameter outside of its module."""
    found = tensor.detach().clone()
    found.untyped_storage().resize_(0)
    return found


def freed_view(tensor: torch.Tensor) -> torch.Tensor:
    """A view whose offset is not 0, such as a part of a flat parameter."""
    flat = tensor.new_zeros(tensor.numel() + 8)
    found = flat[8:].view(tensor.shape)
    flat.untyped_storage().resize_(0)
    return found


def zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def fake(tensor: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def sparse(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_sparse()


def leaked(tensor: torch.Tensor) -> torch.Tensor:
    """The wrapper of a function transform that has ended."""
    kept = []
    torch.func.vmap(lambda row: kept.append(row) or row)(tensor.detach()[None])
    return kept[0]


def nested(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([tensor.detach()], layout=torch.jagged)


# How a tensor stops being plain, and what the refusal says behind the argument's name.
KINDS = {
    freed: "has shape .* and no memory; allowed: a tensor with memory",
    freed_view: "has shape .* and no memory; allowed: a tensor with memory",
    zeros: "has shape .* and no memory; allowed: a tensor with memory",
    leaked: "has shape .* and no memory; allowed: a tensor with memory",
    fake: "is a FakeTensor; allowed: a plain torch.Tensor",
    sparse: "has layout torch.sparse_coo; allowed: torch.strided",
    nested: "is a NestedTensor; allowed: a plain torch.Tensor",
}
FEW = (freed, freed_view, zeros, fake)


def is_refused(call, name: str, text: str) -> None:
    """call raises an error that begins with the argument's name and says `text`."""
    refuses(call, (TypeError, ValueError), f"^{name} {text}")


def _each(call, arguments: dict, names, kinds=tuple(KINDS)) -> None:
    """Every named argument of call in every kind that is not plain."""
    for change in kinds:
        for name in names:
            changed = {**arguments, name: change(arguments[name])}
            is_refused(lambda: call(**changed), name, KINDS[change])


@over(1, 2)
def test_calls_with_keys(group):
    """calc_attn, dispatch, undispatch and roll; the group works after."""
    case = Case(rows=64, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(64)["causal"], case, group)
    q, k, v = (api.dispatch(t, key) for t in make_tensors(case)[:3])
    sink = torch.zeros(1, 4, dtype=torch.float64)
    arguments = {"q": q, "k": k, "v": v, "sink": sink}
    assert api.calc_attn(**arguments, key=key)[0].isfinite().all()
    _each(lambda **given: api.calc_attn(**given, key=key), arguments, arguments)
    arguments["sink"] = None
    api.calc_attn(**arguments, key=key)
    _each(lambda **given: api.calc_attn(**given, key=key), arguments, "qkv", (freed, zeros, fake))
    _each(lambda x: api.dispatch(x, key), {"x": make_tensors(case)[0]}, "x")
    _each(lambda x: api.undispatch(x, key), {"x": q}, "x")
    _each(lambda x: api.roll(x, 1, 0, key), {"x": q}, "x")
    assert api.calc_attn(q, k, v, key)[0].isfinite().all()


@over(1, 2)
def test_gradients_with_keys(group):
    """Gradients that reach calc_attn, dispatch, undispatch and roll, on all ranks alike."""
    case = Case(rows=64, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(64)["causal"], case, group)
    x = make_tensors(case)[0].requires_grad_()
    local = api.dispatch(x, key)
    out, meta = api.calc_attn(local, local[:, :2], local[:, 2:], key)
    own = local.detach().requires_grad_()
    whole, parts = api.undispatch(own, key), api.undispatch(own, key, is_partial_grad=True)
    for change, text in KINDS.items():
        if change in (sparse, nested, leaked):  # torch refuses them
            continue
        for result, name in (
            (out, "the gradient of out"), (meta.lse, "the gradient of lse"),
            (local, "the gradient of local rows"), (whole, "the gradient of global rows"),
            (parts, "the gradient of global rows"),
            (api.roll(own, 1, 0, key), "the gradient of rolled rows"),
        ):  # fmt: skip
            is_refused(lambda: result.backward(change(result), retain_graph=True), name, text)
    out.sum().backward()
    assert x.grad.isfinite().all()


@over(1, 2)
def test_group_collectives(group):
    """Tensors and index lists of group_cast and group_reduce; nothing is sent."""
    rank = dist.get_rank(group)
    rows, ints = torch.zeros(4, 2, 2), torch.tensor([4])
    arguments = {
        "input": rows, "output": rows.clone(), "input_split_sizes": ints,
        "output_split_sizes": ints, "input_lse": rows[:, 0], "output_lse": rows[:, 1],
    }  # fmt: skip
    names = list(arguments)
    cast = {**arguments, "dst_indices": torch.tensor([[rank]]), "src_index": torch.tensor([rank])}
    group_cast(**cast, group=group, cast_lse=True).wait_post_process()
    _each(lambda **given: group_cast(**given, group=group, cast_lse=True), cast, names, FEW)
    _each(lambda **given: group_cast(**given, group=group), cast, ["dst_indices", "src_index"], FEW)
    back = {**arguments, "dst_index": cast["src_index"], "src_indices": cast["dst_indices"]}
    names += ["dst_index", "src_indices"]
    _each(lambda **g: group_reduce(**g, group=group, reduce_op="lse"), back, names, FEW)


@over(1, 2)
def test_distributed_tensors(group):
    """A DTensor is refused in favour of its parts; what a collective still fills is waited for."""
    case = Case(rows=64, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(64)["causal"], case, group)
    q, k, v = (api.dispatch(t, key) for t in make_tensors(case)[:3])
    sink = torch.randn(1, 4, generator=torch.Generator().manual_seed(0)).double()
    arguments = {"q": q, "k": k, "v": v, "sink": sink}
    wanted = api.calc_attn(**arguments, key=key)[0]
    mesh = DeviceMesh.from_group(group, "cpu")
    for place in (Shard(0), Replicate()):
        given = torch.nn.Parameter(DTensor.from_local(sink, mesh, [place]))
        is_refused(
            lambda: api.calc_attn(**{**arguments, "sink": given}, key=key), "sink",
            r"is a DTensor; allowed: a plain torch.Tensor: sink.to_local\(\), .* or "
            r"sink.full_tensor\(\)",
        )  # fmt: skip
    for name, tensor in arguments.items():
        waited = api.calc_attn(**{**arguments, name: AsyncCollectiveTensor(tensor)}, key=key)[0]
        assert torch.equal(waited, wanted)
    sharded = DTensor.from_local(q, mesh, [Shard(0)])
    for call in (api.dispatch, api.undispatch, lambda x, key: api.roll(x, 1, 0, key)):
        is_refused(lambda: call(sharded, key), "x", r"is a DTensor; .*x.full_tensor\(\)")
    later = AsyncCollectiveTensor(q)
    assert torch.equal(api.undispatch(later, key), api.undispatch(q, key))
    assert torch.equal(api.roll(later, 1, 0, key), api.roll(q, 1, 0, key))
    out = api.calc_attn(*(t.requires_grad_() for t in (q, k, v)), key)[0]
    out.backward(AsyncCollectiveTensor(torch.ones_like(out)), retain_graph=True)
    found = q.grad.clone()
    q.grad = None
    out.sum().backward()
    assert torch.equal(found, q.grad)
    for call in (api.undispatch, lambda x, key: api.roll(x, 1, 0, key)):
        negated = torch._neg_view(-q.detach())
        assert negated.is_neg() and torch.equal(call(negated, key), call(q.detach(), key))


@over(1, 2)
def test_lazy_values(group):
    """Views that torch conjugates or negates when they are read: rows of them are what torch says,
    results and gradients.
    """
    key = make_key(dense.masks(64)["causal"], Case(rows=64), group)
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(64, 3, generator=generator, dtype=torch.complex64)
    for lazy in (whole.conj(), whole.conj().imag, torch._neg_view(whole.conj())):
        plain = lazy.resolve_neg().resolve_conj().clone()
        assert lazy.is_conj() or lazy.is_neg()
        local = api.dispatch(lazy, key)
        assert torch.equal(local, api.dispatch(plain, key))
        own = local.conj() if local.is_complex() else torch._neg_view(-local)
        wanted = plain.conj() if local.is_complex() else plain
        assert torch.equal(api.undispatch(own, key), wanted)
        assert torch.equal(api.undispatch(api.roll(own, 5, 0, key), key), wanted.roll(5, 0))
        for is_partial in (False, True):
            leaf = plain[: local.shape[0]].clone().requires_grad_()
            out = api.undispatch(leaf, key, is_partial)
            out.backward(lazy)
            found, leaf.grad = leaf.grad, None
            api.undispatch(leaf, key, is_partial).backward(plain)
            assert torch.equal(found, leaf.grad)
    for lazy in (whole[:4].conj().imag, whole[:4].conj()):
        _exchange_lazily(group, lazy)


def _exchange_lazily(group, lazy: torch.Tensor) -> None:
    """group_cast of lazy rows, into lazy rows; group_reduce likewise, of real ones."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    plain, other, one = lazy.clone(), [(rank + 1) % size], [(rank - 1) % size]
    cast, back = ([4], [4], [other], one), ([4], [4], one, [other])
    assert not plain.is_neg() and not plain.is_conj()

    def result(function, x, into, splits, **options):
        function(x, into, *splits, group, **options).wait_post_process()
        return into.clone()

    output = torch._neg_view(torch.zeros_like(plain))
    wanted = result(group_cast, plain, torch.zeros_like(plain), cast)
    assert torch.equal(result(group_cast, lazy, torch.zeros_like(plain), cast), wanted)
    assert torch.equal(result(group_cast, lazy, output, cast), wanted)
    for op in ("sum", "avg") if not lazy.is_complex() else ():
        outputs = torch.ones_like(plain), torch._neg_view(-torch.ones_like(plain))
        found = [
            result(group_reduce, x, y, back, reduce_op=op) for x, y in zip((plain, lazy), outputs)
        ]
        assert torch.equal(*found)


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


@pytest.mark.parametrize("change", [freed, fake, zeros])
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
