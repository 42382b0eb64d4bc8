# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and convolutions under plans against loops over rows in float64, and the runs
that plans come to.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import random
import weakref
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from magi_attention import Plan, masks, recurrent
from magi_attention.common.ranges import AttnRanges
from magi_attention.config import AffinityDispatchAlg, DispatchConfig, DistAttnConfig
from magi_attention.errors import CommError
from magi_attention.recurrent import _fla, _kinds, _parts
from magi_attention.training import Offload
from ranks import over, own_group, refuses
from test_training import KEEPING, Counts, check_equal
from test_training import run as gradients_of

_HEADS, _KEY_DIM, _DIM, _CHANNELS = 2, 4, 6, 5
SIZES = dict(num_heads_q=2, num_heads_kv=1, head_dim=8)
TOLERANCE = 1e-10


class Layer(NamedTuple):
    """A layer: inputs of so many rows and parameters, by a generator; itself; and what a row gives
    of its inputs, the parameters and the state before it (None: a document begins), with the next.
    """

    draw: Callable
    under: Callable
    step: Callable


def _delta_step(row, parameters, state):
    q, k, v, g, beta = row
    state = k.new_zeros(_HEADS, _KEY_DIM, _DIM) if state is None else state
    state = g.view(_HEADS, -1, 1).exp() * state
    seen = torch.einsum("hd,hde->he", k, state)
    state = state + torch.einsum("hd,he->hde", k, beta[:, None] * (v - seen))
    return torch.einsum("hd,hde->he", q, state) * _KEY_DIM**-0.5, state


def _mamba2_step(row, parameters, state):
    x, dt, b, c = row
    decay, skip = parameters
    state = 0 if state is None else state
    state = (dt * decay).exp()[:, None, None] * state
    state = state + torch.einsum("hd,n->hdn", dt[:, None] * x, b[0])
    return torch.einsum("hdn,n->hd", state, c[0]) + skip[:, None] * x, state


def _mamba1_step(row, parameters, state):
    x, dt, b, c = row
    decay, skip = parameters
    state = 0 if state is None else state
    state = (dt[:, None] * decay).exp() * state + (dt * x)[:, None] * b
    return state @ c + skip * x, state


def _lightning_step(row, parameters, state):
    q, k, v = row
    state = 0 if state is None else state
    state = parameters[0].exp()[:, None, None] * state + torch.einsum("hd,he->hde", k, v)
    return torch.einsum("hd,hde->he", q, state), state


def _rg_lru_step(row, parameters, state):
    x, log_a = row
    state = x if state is None else log_a.exp() * state + x
    return state, state


def _conv_step(row, parameters, state):
    (x,), (weight, bias) = row, parameters
    before = [] if state is None else state
    last = [*before, x][-weight.shape[1] :]
    taps = weight.T[weight.shape[1] - len(last) :]
    out = bias + sum(tap * seen for tap, seen in zip(taps, last))
    return torch.nn.functional.silu(out), last


def _delta_inputs(normal, rows, gate_dim):
    key = normal(rows, _HEADS, _KEY_DIM)
    key = key / key.norm(dim=-1, keepdim=True)
    gate = -normal(rows, _HEADS, *gate_dim).abs()
    value, beta = normal(rows, _HEADS, _DIM), normal(rows, _HEADS).sigmoid()
    return [normal(rows, _HEADS, _KEY_DIM), key, value, gate, beta], []


def _mamba2_inputs(normal, rows):
    inputs = [normal(rows, _HEADS, _DIM), normal(rows, _HEADS).abs()]
    inputs += [normal(rows, 1, _KEY_DIM) for _ in range(2)]
    return inputs, [-normal(_HEADS).abs(), normal(_HEADS)]


def _mamba1_inputs(normal, rows):
    inputs = [normal(rows, _CHANNELS), normal(rows, _CHANNELS).abs()]
    inputs += [normal(rows, _KEY_DIM) for _ in range(2)]
    return inputs, [-normal(_CHANNELS, _KEY_DIM).abs(), normal(_CHANNELS)]


def _mamba(layer):
    def under(plan, inputs, parameters):
        x, dt, b, c = inputs
        return layer(plan, x, dt, parameters[0], b, c, parameters[1])

    return under


LAYERS = {
    "gated_delta_rule": Layer(
        lambda normal, rows: _delta_inputs(normal, rows, ()),
        lambda plan, inputs, _: recurrent.gated_delta_rule(plan, *inputs),
        _delta_step,
    ),
    "kda": Layer(
        lambda normal, rows: _delta_inputs(normal, rows, (_KEY_DIM,)),
        lambda plan, inputs, _: recurrent.kda(plan, *inputs),
        _delta_step,
    ),
    "mamba2": Layer(_mamba2_inputs, _mamba(recurrent.mamba2), _mamba2_step),
    "mamba1": Layer(_mamba1_inputs, _mamba(recurrent.mamba1), _mamba1_step),
    "lightning": Layer(
        lambda normal, rows: (
            [normal(rows, _HEADS, dim) for dim in (_KEY_DIM, _KEY_DIM, _DIM)],
            [-normal(_HEADS).abs()],
        ),
        lambda plan, inputs, parameters: recurrent.lightning(plan, *inputs, *parameters),
        _lightning_step,
    ),
    "rg_lru": Layer(
        lambda normal, rows: ([normal(rows, _CHANNELS), -normal(rows, _CHANNELS).abs()], []),
        lambda plan, inputs, _: recurrent.rg_lru(plan, *inputs),
        _rg_lru_step,
    ),
    "causal_conv1d": Layer(
        lambda normal, rows: (
            [normal(rows, _CHANNELS)], [normal(_CHANNELS, 4), normal(_CHANNELS)],
        ),
        lambda plan, inputs, given: recurrent.causal_conv1d(plan, *inputs, *given, "silu"),
        _conv_step,
    ),
}  # fmt: skip


def documents(draw: random.Random, rows: int) -> masks.Mask:
    """Packed causal documents, some of one row."""
    cuts = sorted(draw.sample(range(1, rows), draw.randint(0, min(6, rows - 1))))
    return masks.from_cu_seqlens([0, *cuts, rows], causal=True)


def tree(draw: random.Random, rows: int) -> masks.Mask:
    """A prefix tree: every node but the first continues one before it."""
    cuts = sorted(draw.sample(range(1, rows), draw.randint(1, min(6, rows - 1))))
    nodes = list(zip([0, *cuts], [*cuts, rows]))
    parents = [-1, *(draw.randrange(i) for i in range(1, len(nodes)))]
    queries, keys, types = [], [], []
    for node, parent in zip(nodes, parents):
        queries.append(node)
        keys.append(node)
        types.append("causal")
        while parent >= 0:
            queries.append(node)
            keys.append(nodes[parent])
            types.append("full")
            parent = parents[parent]
    ranges = AttnRanges.from_ranges(queries), AttnRanges.from_ranges(keys)
    return masks.from_ranges(*ranges, types, rows, rows)


def random_plan(seed: int, ranks: int) -> Plan:
    draw = random.Random(seed)
    rows = draw.choice((1, 7, 40, 100)) if ranks == 1 else draw.choice((ranks, 40, 100))
    mask = tree(draw, rows) if rows > 1 and draw.random() < 0.4 else documents(draw, rows)
    placement = draw.choice(("auto", "contiguous", "zigzag"))
    return Plan.from_mask(mask, cp_size=ranks, **SIZES, placement=placement)


def parents_of(plan: Plan) -> list[int]:
    """By row, the last one before it that it sees, asked of every pair."""
    visible = masks.to_matrix(masks.Mask(plan.handle.mask()))
    return [
        max((key for key in range(row) if visible[row, key]), default=-1)
        for row in range(plan.total_seqlen)
    ]


def by_rows(layer: Layer, inputs, parameters, parents: list[int]) -> torch.Tensor:
    outs, states = [], {-1: None}
    for row, parent in enumerate(parents):
        out, states[row] = layer.step([x[row] for x in inputs], parameters, states[parent])
        outs.append(out)
    return torch.stack(outs)


def agrees(group: dist.ProcessGroup | None, name: str, seed: int, plan: Plan | None = None) -> None:
    """A layer over the ranks of a group is what it is row by row, with all gradients."""
    ranks = 1 if group is None else dist.get_world_size(group)
    plan, layer = plan or random_plan(seed, ranks), LAYERS[name]
    bound, generator = plan.bind(group), torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    given = layer.draw(normal, plan.total_seqlen)
    inputs, parameters = ([x.requires_grad_() for x in xs] for xs in given)
    wanted = by_rows(layer, inputs, parameters, parents_of(plan))
    weights = normal(*wanted.shape)
    leaves = [*inputs, *parameters]
    gradients = torch.autograd.grad((wanted * weights).sum(), leaves, materialize_grads=True)
    local = [bound.dispatch(x.detach()).requires_grad_() for x in inputs]
    found = layer.under(bound, local, parameters)
    error = (bound.undispatch(found.detach()) - wanted).abs().max()
    assert error <= TOLERANCE, f"seed {seed}: {name} over {ranks} ranks differs by {error:.3g}"
    weighed = (found * bound.dispatch(weights))[: bound.rows.num_valid].sum()
    own = torch.autograd.grad(weighed, [*local, *parameters])  # of all, as FSDP asks all ranks
    for place, (gradient, whole) in enumerate(zip(own, gradients)):
        if place < len(inputs):
            gradient = bound.undispatch(gradient)
        elif group is not None:
            dist.all_reduce(gradient, group=group)
        error = (gradient - whole).abs().max() / max(1.0, whole.abs().max())
        assert error <= TOLERANCE, f"seed {seed}: gradient {place} of {name}: {error:.3g}"


def all_agree(group: dist.ProcessGroup | None, seed: int) -> None:
    for name in LAYERS:
        agrees(group, name, seed)


@pytest.mark.parametrize("seed", range(20))
def test_alone(seed):
    all_agree(None, seed)


@over(2, 3, 4)
@pytest.mark.parametrize("name", LAYERS)
def test_over_ranks(group, name):
    for seed in range(6):
        agrees(group, name, seed)


@over(1, 2, 3)
@pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])
def test_parts_of_runs(group, name):
    """Long runs are cut, and tell others one summary all the same."""
    with mock.patch.object(_kinds.Delta, "part_rows", 2), mock.patch.object(_parts, "_ROUND", 1):
        for seed in range(6):
            agrees(group, name, seed)


@over(2)
def test_a_recurrence_without_a_way_back(group):
    """What `through` gives is differentiated."""
    with mock.patch.object(_kinds.Delta, "back", recurrent.Recurrence.back):
        for seed in range(3):
            agrees(group, "gated_delta_rule", seed)


class Mixer(torch.nn.Module):
    """A layer whose inputs but the first are weights, as its parameters are."""

    def __init__(self, name: str, given) -> None:
        super().__init__()
        self.name, ((_, *inputs), parameters) = name, given
        self.inputs, self.weights = map(torch.nn.ParameterList, (inputs, parameters))

    def forward(self, x, bound):
        return LAYERS[self.name].under(bound, [x, *self.inputs], [*self.weights])


@over(2)
@pytest.mark.parametrize("name", ["gated_delta_rule", "rg_lru", "causal_conv1d"])
def test_kept_exchanges(group, name):
    """Recomputation exchanges nothing again under checkpoints that keep attention, and gradients
    have the same bits.
    """
    mask, host = masks.from_cu_seqlens([0, 9, 40], causal=True), Offload(min_bytes=0)
    bound = Plan.from_mask(mask, cp_size=2, placement="zigzag", **SIZES).bind(group)
    generator = torch.Generator().manual_seed(dist.get_rank(group))
    given = LAYERS[name].draw(
        lambda *shape: torch.randn(*shape, generator=generator), bound.local_rows
    )
    x, mixer, counts = given[0][0].requires_grad_(), Mixer(name, given), {}

    def offloaded(layer, y, bound):
        how = dict(use_reentrant=False, context_fn=host.save_attention)
        return checkpoint(layer, y, bound, **how)

    with (
        mock.patch.object(Offload, "_MOVED", ("cpu",)),
        mock.patch.object(_kinds.Delta, "part_rows", 2),
        mock.patch.object(_parts, "_ROUND", 1),
    ):
        wanted = gradients_of([mixer], x, lambda layer, y: layer(y, bound))
        for way, (step, is_kept) in (KEEPING | {"offloaded": (offloaded, True)}).items():
            with Counts() as counted:
                found = gradients_of([mixer], x, lambda layer, y, step=step: step(layer, y, bound))
            check_equal(found, wanted, 0.0)
            counts[is_kept] = {*counts.get(is_kept, ()), counted.found[1]}
            assert counted.found[1] > 0, way
    (kept,), (repeated,) = counts[True], counts[False]  # those without a checkpoint among the kept
    assert 3 * kept == 2 * repeated


@over(3)
@pytest.mark.parametrize("name", LAYERS)
def test_a_rank_without_rows(group, name):
    dispatch = DispatchConfig(uneven_shard=True, alg=AffinityDispatchAlg())
    options = dict(cp_size=3, config=DistAttnConfig(dispatch_config=dispatch))
    plan = Plan.from_mask(masks.from_cu_seqlens([0, 4], causal=False), **SIZES, **options)
    assert 0 in [plan.rows_of(rank) for rank in range(3)]
    agrees(group, name, 0, plan)


REFUSED = {
    "shape": lambda plan, x: recurrent.rg_lru(plan, x, x[:, :1]),
    "width": lambda plan, x: recurrent.windows(plan, x, -1, lambda x: (x,)),
    "activation": lambda plan, x: recurrent.causal_conv1d(plan, x, torch.ones(3, 2), None, "relu"),
    "own": lambda plan, x: recurrent.recur(plan, recurrent.Recurrence(), (x[1:],)),
}


@over(2)
@pytest.mark.parametrize("name", REFUSED)
def test_refusal_of_one_rank(group, name):
    """Others, which wait in the exchange, are told at once."""
    mask = masks.from_cu_seqlens([0, 64], causal=True)
    own = own_group(dist.get_process_group_ranks(group))
    bound = Plan.from_mask(mask, placement="contiguous", cp_size=2, **SIZES).bind(own)
    ones = torch.ones(bound.local_rows, 3)
    if dist.get_rank(group) == 1:
        refuses(lambda: REFUSED[name](bound, ones), (ValueError, TypeError), "; allowed: ")
    else:
        refuses(lambda: recurrent.rg_lru(bound, ones, -ones), CommError, "rank 1")
    dist.barrier(group)


@over(2)
def test_differing_plans(group):
    """Ranks whose plans differ are told by the exchange."""
    first = 20 + dist.get_rank(group)
    mask = masks.from_cu_seqlens([0, first, 64], causal=True)
    bound = Plan.from_mask(mask, placement="contiguous", cp_size=2, **SIZES).bind(
        own_group(dist.get_process_group_ranks(group))
    )
    ones = torch.ones(bound.local_rows, 3)
    refuses(lambda: recurrent.rg_lru(bound, ones, -ones), CommError, "")


@pytest.mark.parametrize("seed", range(40))
def test_runs(seed):
    """Runs hold every row once, follow each other, and come after what a row sees last."""
    plan = random_plan(seed, 1 + seed % 4)
    parents = parents_of(plan)
    ends, rows = set(), []
    runs = [plan.runs(rank) for rank in range(plan.cp_size)]
    for run in (run for of_rank in runs for run in of_rank):
        assert run.parent == parents[run.begin]
        assert all(parents[row] == row - 1 for row in range(run.begin + 1, run.end))
        rows.extend(range(run.begin, run.end))
        ends.add(run.end - 1)
    assert sorted(rows) == list(range(plan.total_seqlen))
    assert all(run.parent in {-1, *ends} for of_rank in runs for run in of_rank)


def bound_plan():
    mask = masks.from_cu_seqlens([0, 5, 12], causal=True)
    return Plan.from_mask(mask, cp_size=1, **SIZES).bind()


def test_reduced_types():
    """States are float32 where inputs are narrower; the result has the inputs' type."""
    bound, generator = bound_plan(), torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator)
    log_a = -torch.rand(12, 3, generator=generator)
    found = recurrent.rg_lru(bound, x.bfloat16(), log_a.bfloat16())
    wanted = recurrent.rg_lru(bound, x.bfloat16().double(), log_a.bfloat16().double())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted.bfloat16())


def drawn(name: str):
    """A layer in float32 under bound_plan, and its leaves."""
    generator = torch.Generator().manual_seed(0)
    given = LAYERS[name].draw(lambda *shape: torch.randn(*shape, generator=generator), 12)
    inputs, parameters = ([x.requires_grad_() for x in xs] for xs in given)
    bound = bound_plan()
    return lambda: LAYERS[name].under(bound, inputs, parameters), [*inputs, *parameters]


@pytest.mark.parametrize("name", LAYERS)
def test_autocast(name):
    """Recurrences keep their width, in backward too; convolutions are in the type that torch's are,
    and all results in that of the inputs, as in models' own mixers.
    """
    layer, leaves = drawn(name)
    found = []
    for is_on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            out = layer()
            assert out.dtype == torch.float32
            found.append([out, *torch.autograd.grad(out.sum(), leaves)])
    is_convolution = name == "causal_conv1d"
    assert all(map(torch.equal, *found)) != is_convolution
    if is_convolution:
        assert torch.equal(found[1][0], found[1][0].bfloat16().float())


@pytest.mark.parametrize("name", LAYERS)
def test_training_after_inference(name):
    """What a plan keeps is of use to gradients, whoever was first."""
    layer, leaves = drawn(name)
    with torch.inference_mode():
        found = layer()
    out = layer()
    assert torch.equal(out, found)
    torch.autograd.grad(out.sum(), leaves)


@pytest.mark.parametrize("name", LAYERS)
def test_compiled(name):
    """Layers cut the graphs of what compiles them."""
    layer, leaves = drawn(name)
    compiled = torch.compile(lambda: 2 * layer(), backend="eager")
    found, wanted = compiled(), 2 * layer()
    assert torch.equal(found, wanted)
    gradients = (torch.autograd.grad(out.sum(), leaves) for out in (found, wanted))
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("version, fits", [("0.6.0", True), ("0.6.9", True), ("0.5.2", False)])
def test_versions_of_kernels(monkeypatch, version, fits):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    warns = contextlib.nullcontext() if fits else pytest.warns(UserWarning, match=">=0.6,<0.7")
    with warns:
        assert _fla.is_installed.__wrapped__() == fits


def test_refusals():
    bound, v = bound_plan(), torch.ones(12, 4, 8)
    with pytest.raises(TypeError, match=r"^plan is a Plan; allowed: a bound plan"):
        recurrent.rg_lru(bound.plan, v, v)
    with pytest.raises(TypeError, match=r"^plan is a Plan; allowed: a bound plan"):
        recurrent.recur(bound.plan, recurrent.Recurrence(), (v,))
    with pytest.raises(ValueError, match=r"^x has shape \[11, 3\]; allowed: \[12, 3\]"):
        recurrent.rg_lru(bound, torch.ones(11, 3), torch.ones(12, 3))
    with pytest.raises(TypeError, match=r"^log_a is a float; allowed: a tensor"):
        recurrent.rg_lru(bound, torch.ones(12, 3), 1.0)
    with pytest.raises(ValueError, match=r"^weight has shape \[2, 4\]; allowed: \[3, 4\]"):
        recurrent.causal_conv1d(bound, torch.ones(12, 3), torch.ones(2, 4))
    with pytest.raises(ValueError, match="activation is 'relu'; allowed: None, 'silu'"):
        recurrent.causal_conv1d(bound, torch.ones(12, 3), torch.ones(3, 4), activation="relu")


def test_shapes_that_would_be_spread():
    bound, v = bound_plan(), torch.ones(12, 4, 8)
    with pytest.raises(ValueError, match=r"^beta has shape \[12, 1\]; allowed: \[12, 4\]"):
        recurrent.gated_delta_rule(bound, v, v, v, v[..., 0], v[:, :1, 0])
    with pytest.raises(ValueError, match=r"^g has shape \[12, 4, 1\]; allowed: \[12, 4, 8\]"):
        recurrent.kda(bound, v, v, v, v[..., :1], v[..., 0])
    with pytest.raises(ValueError, match=r"^log_decay has shape \[1\]; allowed: \[4\]"):
        recurrent.lightning(bound, v, v, v, torch.ones(1))
    with pytest.raises(ValueError, match=r"^D has shape \[1\]; allowed: \[4\]"):
        recurrent.mamba2(bound, v, v[..., 0], v[0, :, 0], v, v, torch.ones(1))
    with pytest.raises(ValueError, match=r"^D has shape \[1\]; allowed: \[4\]"):
        recurrent.mamba1(bound, v[..., 0], v[..., 0], v[0], v[:, 0], v[:, 0], torch.ones(1))


@pytest.mark.parametrize("heads", [0, 3, 8])
def test_heads_that_do_not_divide(heads):
    bound, v, k = bound_plan(), torch.ones(12, 4, 8), torch.ones(12, heads, 8)
    for layer, g in ((recurrent.kda, v), (recurrent.gated_delta_rule, v[..., 0])):
        with pytest.raises(ValueError, match=f"^q and k have {heads} heads for 4; allowed: "):
            layer(bound, k, k, v, g, v[..., 0])
    with pytest.raises(ValueError, match=f"^B and C have {heads} heads for 4; allowed: "):
        recurrent.mamba2(bound, v, v[..., 0], v[0, :, 0], k, k)


def test_a_plan_ends_with_its_last_user():
    """What recurrent layers keep of a bound plan does not keep it."""
    bound = bound_plan()
    x = torch.ones(bound.local_rows, 3)
    recurrent.rg_lru(bound, x, -x)
    recurrent.causal_conv1d(bound, x, torch.ones(3, 2))
    seen = weakref.ref(bound)
    del bound
    gc.collect()
    assert seen() is None
