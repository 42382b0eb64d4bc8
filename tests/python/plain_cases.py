# SPDX-License-Identifier: Apache-2.0
"""Tensors that are not plain memory, and the tensor arguments of everything that needs a group; one
process or every rank runs the cases.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode

import dense
from magi_attention import api
from magi_attention.comm.primitive.grpcoll import group_cast, group_reduce
from pipeline_cases import Case, make_key, make_tensors
from ranks import refuses


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
ERRORS = (TypeError, ValueError)


def is_refused(call, name: str, text: str) -> None:
    """call raises an error that begins with the argument's name and says `text`."""
    try:
        call()
    except ERRORS as error:
        refuses(lambda: call(), type(error), f"^{name} {text}")
    else:
        raise AssertionError(f"{name} was accepted; expected: {text}")


def _each(call, arguments: dict, names, kinds=tuple(KINDS)) -> None:
    """Every named argument of call in every kind that is not plain."""
    for change in kinds:
        for name in names:
            changed = {**arguments, name: change(arguments[name])}
            is_refused(lambda: call(**changed), name, KINDS[change])


def calls_with_keys(group) -> None:
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


def gradients_with_keys(group) -> None:
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


def group_collectives(group) -> None:
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


def distributed_tensors(group) -> None:
    """A DTensor is refused in favour of its parts; what a collective still fills is waited for."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    case = Case(rows=64, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(64)["causal"], case, group)
    q, k, v = (api.dispatch(t, key) for t in make_tensors(case)[:3])
    sink = torch.randn(1, 4, generator=torch.Generator().manual_seed(0)).double()
    arguments = {"q": q, "k": k, "v": v, "sink": sink}
    wanted = api.calc_attn(**arguments, key=key)[0]
    mesh = DeviceMesh.from_group(group, "cpu")
    for name, tensor in arguments.items():
        for place in (Shard(0), Replicate()):
            given = torch.nn.Parameter(DTensor.from_local(tensor, mesh, [place]))
            is_refused(
                lambda: api.calc_attn(**{**arguments, name: given}, key=key), name,
                rf"is a DTensor; allowed: a plain torch.Tensor: {name}.to_local\(\), .* or "
                rf"{name}.full_tensor\(\)",
            )  # fmt: skip
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


def lazy_values(group) -> None:
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
