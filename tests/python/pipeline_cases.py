# SPDX-License-Identifier: Apache-2.0
"""Cases that every rank runs: each compares the whole pipeline with dense float64 attention. They
run on torch's default device.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import dense
from magi_attention import api, functional
from magi_attention.common import AttnRanges
from ranks import refuses

TOLERANCE = 1e-9  # of float64 values of order 1


@dataclasses.dataclass(frozen=True)
class Case:
    mask: str = "varlen_causal"
    rows: int = 150
    heads: tuple[int, int] = (8, 2)
    head_dim: int = 16
    degree: int | None = 1
    dtype: str = "float64"
    alg: str = "AutoDispatchAlg"
    chunk_size: int | None = None
    uneven: bool = False
    work: str | None = None
    head_shares: int = 0
    max_exchange_bytes: int | None = None
    layout: str = "permuted"
    sinks: int = 0
    sink_per_row: bool = False
    softcap: float = 0.0
    scale: float | None = None
    is_partial_grad: bool = False
    with_lse_gradient: bool = False

    def config(self) -> api.DistAttnConfig:
        mode = api.AttnOverlapMode.DYNAMIC if self.degree is None else api.AttnOverlapMode.STATIC
        return api.DistAttnConfig(
            api.DispatchConfig(
                chunk_size=self.chunk_size, uneven_shard=self.uneven,
                alg=getattr(api, self.alg)(), layout=self.layout,
            ),
            api.OverlapConfig(mode=mode, degree=self.degree, min_chunk_size=8),
            work=self.work, head_shares=self.head_shares,
            max_exchange_bytes=self.max_exchange_bytes,
        )  # fmt: skip


# Over 3 ranks the last one gets no row.
OPTIONS = [
    {"sinks": 8, "mask": "empty_rows"}, {"sinks": 2, "sink_per_row": True}, {"softcap": 2.5},
    {"scale": 0.3}, {"with_lse_gradient": True, "sinks": 2, "softcap": 4.0},
    {"is_partial_grad": True}, {"head_dim": 24}, {"rows": 33}, {"chunk_size": 5, "degree": 4},
]  # fmt: skip
IDLE = Case(mask="full", rows=4, uneven=True, alg="AffinityDispatchAlg")


def make_key(mask: dense.Mask, case: Case, group):
    sizes = mask.rows_q, mask.rows_k, *case.heads, case.head_dim
    return api.magi_attn_flex_key(
        *mask.ranges(), *sizes, cp_group_or_mesh=group, dist_attn_config=case.config()
    )


def plain_dtype() -> torch.dtype:
    """One that attention takes on torch's default device."""
    return torch.bfloat16 if torch.get_default_device().type == "cuda" else torch.float32


def seeded(seed: int) -> torch.Generator:
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def make_tensors(case: Case, seed: int = 0):
    """q, k, v, sink (or None) and the gradients of out and lse: the same on every rank."""
    generator = seeded(seed)
    heads_q, heads_kv = case.heads

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = random(case.rows, heads_q, case.head_dim)
    k, v = random(case.rows, heads_kv, case.head_dim), random(case.rows, heads_kv, case.head_dim)
    sink = None
    if case.sinks:
        lead = (case.rows,) if case.sink_per_row else ()
        sink = random(*lead, case.sinks, heads_q)
    return q, k, v, sink, random(*q.shape), random(case.rows, heads_q)


def visible_lse(lse: torch.Tensor) -> torch.Tensor:
    return lse[lse.isfinite()]


def expected(mask: dense.Mask, case: Case, tensors, dtype: torch.dtype = torch.float64):
    """out, lse, max_logits and gradients of dense attention in a type."""
    q, k, v, sink, dout, dlse = (None if t is None else t.to(dtype) for t in tensors)
    inputs = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    sink = None if sink is None else sink.detach().clone().requires_grad_()
    out, lse, max_logits = dense.attention(*inputs, mask, sink, case.scale, case.softcap)
    loss = (out * dout).sum()
    if case.with_lse_gradient:
        loss = loss + (lse * dlse)[lse.isfinite()].sum()
    loss.backward()
    gradients = [t.grad for t in inputs] + [None if sink is None else sink.grad]
    return out.detach(), lse.detach(), max_logits.detach(), gradients


def check_close(name: str, found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape, f"{name}: {found.shape} for {wanted.shape}"
    assert not found.isnan().any(), f"{name} holds NaN"
    same_infinities = torch.equal(found.isinf(), wanted.isinf())
    assert same_infinities, f"{name}: infinities differ"
    finite = wanted.isfinite()
    error = (found.double() - wanted)[finite].abs().max().item() if finite.any() else 0.0
    assert error <= tolerance, f"{name}: error {error:.3g} above {tolerance:.3g}"


def run_attention(key, case: Case, tensors):
    """The pipeline on this rank: global out, lse, max_logits and gradients of q, k, v, sink."""
    dtype = getattr(torch, case.dtype)
    q, k, v, sink, dout, dlse = tensors
    leaves = [t.detach().clone().to(dtype).requires_grad_() for t in (q, k, v)]
    local_sink = None
    if sink is not None:
        wide = torch.float64 if case.dtype == "float64" else torch.float32
        local_sink = api.dispatch(sink, key) if case.sink_per_row else sink.clone()
        local_sink = local_sink.to(wide).detach().requires_grad_()
    local = [api.dispatch(t, key) for t in leaves]
    out, meta = api.calc_attn(
        *local, key, local_sink, case.scale, case.softcap, return_max_logits=True
    )
    whole = api.undispatch(out, key, case.is_partial_grad)
    upstream = dout.to(dtype)
    if case.is_partial_grad:  # ranks hold parts that add up to the gradient
        upstream = upstream / dist.get_world_size(key.cp_group)
    loss = (whole * upstream).sum()
    if case.with_lse_gradient:
        local_dlse = api.dispatch(dlse, key)
        finite = meta.lse.isfinite()
        loss = loss + (meta.lse[finite] * local_dlse[finite].to(meta.lse.dtype)).sum()
    loss.backward()
    dsink = None if local_sink is None else local_sink.grad
    if dsink is not None:
        if case.sink_per_row:
            dsink = api.undispatch(dsink, key)
        else:
            dist.all_reduce(dsink, group=key.cp_group)
    gradients = [t.grad for t in leaves] + [dsink]
    return whole.detach(), api.undispatch(meta.lse.detach(), key), meta.max_logits, gradients


def pipeline(group, case: Case) -> None:
    mask = dense.masks(case.rows)[case.mask]
    if case.with_lse_gradient and case.is_partial_grad:
        raise ValueError("a case takes one of both")
    key = make_key(mask, case, group)
    check_attention(case.mask, key, mask, case, make_tensors(case))


def stages_in_turns(group, case: Case) -> None:
    """Stages take turns in memory where max_exchange_bytes asks for it, with the same results."""
    mask = dense.masks(case.rows)[case.mask]
    key = make_key(mask, case, group)
    plan = api.dist_attn_runtime_dict_mgr[key].plan
    assert json.loads(plan.to_json())["stages_in_flight"] == 2
    assert max(plan.report.rank_memory) <= case.max_exchange_bytes
    check_attention(case.mask, key, mask, case, make_tensors(case))
    bound = case.max_exchange_bytes // 1000
    bounded = dataclasses.replace(case, max_exchange_bytes=bound)
    text = f"max_exchange_bytes is {bound}; allowed: 0 .no bound., or for this mask"
    refuses(lambda: make_key(mask, bounded, group), ValueError, text)


def check_attention(title: str, key, mask: dense.Mask, case: Case, tensors) -> None:
    """Results and gradients: dq, dk, dv, and dsink where there is a sink. Errors in 16 or 32 bits
    are at most twice those of dense attention in that type, plus its rounding.
    """
    is_exact = case.dtype == "float64"
    if not is_exact:
        dtype = getattr(torch, case.dtype)
        tensors = [None if t is None else t.to(dtype).double() for t in tensors]
    found, wanted = _flat(run_attention(key, case, tensors)), _flat(expected(mask, case, tensors))
    names = ("out", "lse", "max_logits", "dq", "dk", "dv", "dsink")
    low = [None] * len(names)
    if not is_exact:
        low = _flat(expected(mask.multiplicity().to(dtype), case, tensors, dtype))
    for name, f, w, reference in zip(names, found, wanted, low):
        if w is None:
            assert name == "dsink" and f is None
            continue
        allowed = TOLERANCE if is_exact else _allowed(reference, w, dtype)
        check_close(f"{title}: {name}", f, w, allowed)


def _flat(results) -> list:
    out, lse, max_logits, gradients = results
    return [out, lse, max_logits, *gradients]


def _allowed(low: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> float:
    finite = wanted.isfinite()
    if not finite.any():
        return 0.0
    rounding = torch.finfo(dtype).eps * wanted[finite].abs().max().item()
    return 2 * (low.double() - wanted)[finite].abs().max().item() + rounding


def same_bits(group, case: Case) -> None:
    """Two runs give the same bits."""
    mask, tensors = dense.masks(case.rows)[case.mask], make_tensors(case)
    key = make_key(mask, case, group)
    first, second = (run_attention(key, case, tensors) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    for a, b in zip(first[3], second[3]):
        assert a is None or torch.equal(a, b)


def hybrid(group, case: Case) -> None:
    """Layers of different masks on one placement; keys of a mask on two placements differ."""
    all_masks = dense.masks(case.rows)
    tensors = make_tensors(case)
    first = make_key(all_masks["varlen_causal"], case, group)
    for name in ("full", "four_types", "varlen_causal"):
        mask = all_masks[name]
        other = dataclasses.replace(case.config(), grpcoll_config=api.GrpCollConfig(num_sms=8))
        key = api.make_flex_key_for_new_mask_after_dispatch(
            *mask.ranges(), first, dist_attn_config=other
        )
        assert torch.equal(api.get_position_ids(key), api.get_position_ids(first))
        assert key.dist_attn_config.grpcoll_config.num_sms == 8
        check_attention(name, key, mask, case, tensors)
        assert make_key(mask, case, group) != key
    bounds = torch.tensor([0, case.rows // 3, case.rows], dtype=torch.int32)
    varlen = api.make_varlen_key_for_new_mask_after_dispatch(bounds, bounds, first, causal=True)
    ends = bounds.tolist()
    documents = list(itertools.pairwise(ends))
    mask = dense.Mask(documents, documents, [1, 1], case.rows, case.rows)
    check_attention("varlen", varlen, mask, case, tensors)


def shards(group, rows: int, uneven: bool, has_idle_rank: bool = False) -> None:
    """dispatch, undispatch, roll and position ids against plain torch, for several types.
    has_idle_rank: the last rank gets no row.
    """
    alg = "SequentialDispatchAlg" if uneven else "AutoDispatchAlg"
    case = IDLE if has_idle_rank else Case(rows=rows, uneven=uneven, alg=alg)
    key = make_key(dense.masks(rows)[case.mask], case, group)
    with torch.device("meta"):  # a default device is no reason to be there
        ids = api.get_position_ids(key)
    assert not ids.is_meta
    is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
    assert (ids.shape[0] == 0) == (has_idle_rank and is_last)
    for dtype in (
        torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.int16,
        torch.float8_e4m3fn, torch.complex64, torch.complex128,
    ):  # fmt: skip
        every_byte = (torch.arange(rows * 48) % 251).to(torch.uint8).view(rows, 48)
        x = (every_byte % 2).bool() if dtype == torch.bool else every_byte.view(dtype)
        x = x[:, :3]
        local = api.dispatch(x, key)
        assert local.dtype == dtype and local.shape[0] == ids.shape[0]
        assert bytes_of(api.undispatch(local, key)) == bytes_of(x)
        rolled = api.undispatch(api.roll(local, 1, 0, key), key)
        assert bytes_of(rolled) == bytes_of(x[-1:]) + bytes_of(x[:-1])
    x = torch.arange(rows, dtype=torch.float64)
    padded = api.dispatch(x, key, pad_value=-1)
    valid = padded >= 0
    assert torch.equal(padded[valid].long(), ids[valid]) and (ids[~valid] == rows - 1).all()
    counts = torch.zeros(rows)
    counts[ids[valid]] = 1
    dist.all_reduce(counts, group=group)
    assert (counts == 1).all()
    for shift in (0, 1, -1, 7, -rows - 3, 2 * rows + 5):
        leaf = x.clone().requires_grad_()
        rolled = api.roll(api.dispatch(leaf, key), shift, 0, key)
        assert torch.equal(api.undispatch(rolled, key), torch.roll(x, shift))
        weights = torch.arange(rows, dtype=torch.float64)
        (api.undispatch(rolled, key) * weights).sum().backward()
        assert torch.equal(leaf.grad, torch.roll(weights, -shift))
        wide = api.roll_simple(api.dispatch(torch.stack((x, -x), 1), key).T, shift, 1, key)
        assert torch.equal(api.undispatch(wide.T, key)[:, 1], -torch.roll(x, shift))


def bytes_of(x: torch.Tensor) -> bytes:
    return bytes(x.contiguous().flatten().view(torch.uint8).tolist())


def gradients_of_shards(group, rows: int) -> None:
    """dispatch gives the whole gradient on every rank; undispatch sums partial gradients."""
    key = make_key(dense.masks(rows)["causal"], Case(rows=rows), group)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=seeded(1))
    leaf = x.clone().requires_grad_()
    api.dispatch(leaf, key).pow(3).sum().backward()
    assert torch.allclose(leaf.grad, 3 * x**2)
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    local = api.dispatch(x, key).requires_grad_()
    weights = torch.randn(size, rows, 3, generator=seeded(2)).double()
    (api.undispatch(local, key, is_partial_grad=True) * weights[rank]).sum().backward()
    assert torch.allclose(local.grad, api.dispatch(weights.sum(0), key))
    local.grad = None
    (api.undispatch(local, key) * weights[0]).sum().backward()
    assert torch.allclose(local.grad, api.dispatch(weights[0], key))
    waves = torch.complex(local.detach(), local.detach()).requires_grad_()
    whole = api.undispatch(waves, key, is_partial_grad=True)
    (whole * (1 + rank)).abs().square().sum().backward()
    factor = sum((1 + peer) ** 2 for peer in range(size))
    assert torch.allclose(waves.grad, 2 * factor * waves.detach())


def functions_of_bound_plans(group, rows: int) -> None:
    """dispatch_func, undispatch_func and the rolls along any axis."""
    ranges = AttnRanges.from_ranges([(0, rows)])
    size = dist.get_world_size(group)
    plan = api.Plan.from_ranges(
        ranges, ranges, "causal", rows, cp_size=size, num_heads_q=1, num_heads_kv=1, head_dim=8
    )
    bound = plan.bind(group)
    x = torch.arange(rows * 3).reshape(3, rows)
    local = functional.dispatch_func(x, group, bound, seq_dim=1)
    assert local.shape == (3, bound.local_rows)
    assert torch.equal(functional.undispatch_func(local, bound, group, seq_dim=1), x)
    for roll in (functional.roll_func, functional.roll_simple_func):
        rolled = roll(local, 5, bound, group, seq_dim=1)
        whole = functional.undispatch_func(rolled, bound, None, seq_dim=1)
        assert torch.equal(whole, torch.roll(x, 5, 1))
    world = dist.group.WORLD
    refuses(lambda: functional.dispatch_func(x, world, bound, seq_dim=1), ValueError,
            "group is not that of meta")  # fmt: skip
    sent = bound.communicator.counters()["bytes_to_peer"]
    assert sent[dist.get_rank(group)] == 0 and (size == 1 or sum(sent) > 0)


def meshes_and_two_groups(group, case: Case, replicas: int = 2) -> None:
    """Data parallel x context parallel: groups of ranks, each with a mask of its own, as 1-D
    meshes, and one group of all ranks as a 2-D mesh.
    """
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = init_device_mesh(torch.get_default_device().type, shape, mesh_dim_names=("dp", "cp"))
    replica = mesh.get_local_rank("dp")
    name = ("varlen_causal", "four_types", "causal", "empty_rows")[replica]
    mask, tensors = dense.masks(case.rows)[name], make_tensors(case, seed=replica)
    key = make_key(mask, case, mesh["cp"])
    check_attention(f"replica {replica}", key, mask, case, tensors)
    mask, tensors = dense.masks(case.rows)["full"], make_tensors(case)
    whole = make_key(mask, case, mesh)
    assert dist.get_world_size(whole.cp_group) == mesh.size() and whole.cp_mesh is mesh
    assert make_key(mask, case, mesh) is whole
    check_attention("mesh", whole, mask, case, tensors)
    assert api.get_most_recent_key(whole.cp_group) is whole
    assert api.get_most_recent_key(key.cp_group) is key


def training_of_replicas(group, case: Case) -> None:
    """Two replicas, each a sequence with a mask of its own, that share weights: the sum of their
    gradients over all ranks, and two plans in turns on one group.
    """
    mesh = init_device_mesh(
        torch.get_default_device().type,
        (2, dist.get_world_size() // 2),
        mesh_dim_names=("dp", "cp"),
    )
    replica, masks = mesh.get_local_rank("dp"), dense.masks(case.rows)
    names = (("varlen_causal", "causal"), ("four_types", "prefix"))

    def loss(attend, q, k, v, weight, upstream):
        return (attend(q * weight, k, v) * upstream).sum()

    weight = torch.full((case.head_dim,), 0.5, dtype=torch.float64, requires_grad=True)
    keys = [make_key(masks[name], case, mesh["cp"]) for name in names[replica]]
    for key in keys * 2:
        q, k, v, _, upstream, _ = make_tensors(case, seed=replica)
        parts = [api.dispatch(t, key) for t in (q, k, v)]
        local = api.dispatch(upstream, key)
        loss(lambda *qkv: api.calc_attn(*qkv, key)[0], *parts, weight, local).backward()
    dist.all_reduce(weight.grad)
    wanted = torch.full((case.head_dim,), 0.5, dtype=torch.float64, requires_grad=True)
    for seed, replica_names in enumerate(names):
        q, k, v, _, upstream, _ = make_tensors(case, seed=seed)
        for name in replica_names:

            def attend(q, k, v, mask=masks[name]):
                return dense.attention(q, k, v, mask)[0]

            (2 * loss(attend, q, k, v, wanted, upstream)).backward()
    check_close("weight", weight.grad, wanted.grad, 1e-8)


def checkpointing(group, case: Case) -> None:
    """Recomputing the forward in backward gives the same gradients."""
    mask, dtype = dense.masks(case.rows)[case.mask], getattr(torch, case.dtype)
    tensors = [None if t is None else t.to(dtype) for t in make_tensors(case)]
    key = make_key(mask, case, group)
    gradients = []
    for is_checkpointed in (False, True):
        leaf = tensors[0].clone().requires_grad_()

        def layer(x):
            local = api.dispatch(x, key)
            kv = local[:, : case.heads[1]]
            return api.calc_attn(local, kv, kv * 2, key)[0]

        out = checkpoint(layer, leaf, use_reentrant=False) if is_checkpointed else layer(leaf)
        (api.undispatch(out, key) * tensors[4]).sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def compiled(group, case: Case) -> None:
    """A compiled module without graph breaks, forward and backward."""
    mask, dtype = dense.masks(case.rows)[case.mask], getattr(torch, case.dtype)
    key = make_key(mask, case, group)
    local = [api.dispatch(t.to(dtype), key) for t in make_tensors(case)[:3]]

    def layer(q, k, v):
        out, meta = api.calc_attn(q * 2, k, v, key, softcap=5.0)
        return out + 1, meta.lse

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaves = [t.clone().requires_grad_() for t in local]
        out, lse = function(*leaves)
        (out.pow(2).sum() + lse.sum()).backward()
        results.append([out.detach(), lse.detach()] + [t.grad for t in leaves])
    for eager, graph in zip(*results):
        assert torch.allclose(eager, graph)


def plan_of_one_call(group, is_compiled: bool) -> None:
    """A plan that nobody else holds lives until backward."""
    ranges = AttnRanges.from_ranges([(0, 48)])
    size = dist.get_world_size(group)

    def loss(x):
        plan = api.Plan.from_ranges(
            ranges, ranges, "causal", 48, cp_size=size, num_heads_q=2, num_heads_kv=2, head_dim=8
        )
        bound = plan.bind(group)
        local = bound.dispatch(x) * weight

        def attend(local):
            return bound.calc_attn(local, local * 2, local * 3)[0].pow(2)

        if is_compiled:
            attend = torch.compile(attend, fullgraph=True, backend="aot_eager")
        return attend(local).sum()

    x = torch.randn(48, 2, 8, generator=seeded(0)).to(plain_dtype())
    weight = torch.ones(8, dtype=x.dtype, requires_grad=True)
    lost = loss(x)
    torch._dynamo.reset()
    gc.collect()
    lost.backward()
    assert weight.grad.isfinite().all() and weight.grad.abs().sum() > 0


def plan_mismatch(group) -> None:
    """Ranks with different plans are told so at a group's first call."""
    rank, group = dist.get_rank(group), dist.new_group(dist.get_process_group_ranks(group))
    mask = dense.masks(64)[("causal", "full")[rank % 2]]
    key = make_key(mask, Case(rows=64), group)
    q, kv = (torch.zeros(key._local_shape.rows, heads, 16, dtype=plain_dtype()) for heads in (8, 2))
    with pytest.raises(RuntimeError, match="rank") as raised:
        api.calc_attn(q, kv, kv, key)
    assert raised.value.failure == "plan mismatch"


def reduced_sink_gradients(group, case: Case) -> None:
    """MAGI_ATTENTION_DSINK_ALL_REDUCE_OP: the gradient of a shared sink, summed or averaged."""
    mask, tensors = dense.masks(case.rows)[case.mask], make_tensors(case)
    wanted = expected(mask, case, tensors)[3][3]
    size = dist.get_world_size(group)
    for op, factor in (("sum", 1), ("avg", size)):
        os.environ["MAGI_ATTENTION_DSINK_ALL_REDUCE_OP"] = op
        key = make_key(mask, case, group)
        found = run_attention(key, case, tensors)[3][3]  # summed over ranks once more
        check_close(op, found / size * factor, wanted, TOLERANCE)  # of the key that is kept, too


def environment(group, variables: dict[str, str], case, *arguments) -> None:
    """Another case under environment variables."""
    os.environ.update(variables)
    case(group, *arguments)


def flattened_head_groups(group, case: Case) -> None:
    """MAGI_ATTENTION_FLATTEN_HEAD_GROUPS makes plans of head shares, with sinks and max_logits."""
    variable = "MAGI_ATTENTION_FLATTEN_HEAD_GROUPS"
    mask = dense.masks(case.rows)[case.mask]
    with mock.patch.dict(os.environ, {variable: "1"}):
        key = make_key(mask, case, group)
    plan = json.loads(api.dist_attn_runtime_dict_mgr[key].plan.to_json())
    assert plan["config"]["work"] == "heads"
    assert plan["num_head_shares"] == dist.get_world_size(group)
    assert make_key(mask, case, group) != key
    check_attention(variable, key, mask, case, make_tensors(case))
