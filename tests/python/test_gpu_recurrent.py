# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers by the kernels of fla-core in bfloat16: at most twice as far from float64 as
plain torch in bfloat16, row by row, is.
"""

from unittest import mock

import pytest
import torch
import torch.distributed as dist

import test_recurrent as layers
from magi_attention import Plan
from magi_attention.recurrent import _fla, _kinds
from on_gpu import NEEDS_GPU, capture
from ranks import over

pytest.importorskip("fla")
pytestmark = NEEDS_GPU
KERNELS = ("gated_delta_rule", "kda", "mamba2", "lightning", "causal_conv1d")
SIZES = {"_HEADS": 4, "_KEY_DIM": 64, "_DIM": 128, "_CHANNELS": 256}
ROWS, TYPE = 300, torch.bfloat16


def refused(*_):
    raise AssertionError("a layer computes in plain torch")


def plan_of(kind: str, ranks: int) -> Plan:
    mask = getattr(layers, kind)(layers.random.Random(1), ROWS)
    sizes = dict(cp_size=ranks, num_heads_q=2, num_heads_kv=1, head_dim=64)
    return Plan.from_mask(mask, placement="zigzag", **sizes)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return (found.double().cpu() - wanted).norm().item()


def by_rows(layer, given, dtype, weights, parents):
    """The results and all gradients, row by row, on the host."""
    inputs, parameters = ([x.to(dtype).requires_grad_() for x in xs] for xs in given)
    out = layers.by_rows(layer, inputs, parameters, parents)
    leaves = [*inputs, *parameters]
    loss = (out.double() * weights).sum()
    return [out.detach(), *torch.autograd.grad(loss, leaves, materialize_grads=True)]


def by_kernels(group, layer, given, weights, bound):
    """The same under a plan, for the whole sequence."""
    inputs = [bound.dispatch(x.cuda().to(TYPE)).requires_grad_() for x in given[0]]
    parameters = [x.cuda().to(TYPE).requires_grad_() for x in given[1]]
    with (
        mock.patch.object(_kinds.Delta, "scan", refused),
        mock.patch.object(_kinds.Scalar, "scan", refused),
    ):
        out = layer.under(bound, inputs, parameters)
        loss = (out.double() * bound.dispatch(weights.cuda()))[: bound.rows.num_valid].sum()
        own = torch.autograd.grad(loss, [*inputs, *parameters], materialize_grads=True)
    found = [bound.undispatch(x.detach()) for x in (out, *own[: len(inputs)])]
    for gradient in own[len(inputs) :]:
        if group is not None:
            dist.all_reduce(gradient, group=group)
        found.append(gradient)
    return found


def check(group, name: str, kind: str) -> None:
    assert _fla.is_installed()
    ranks = 1 if group is None else dist.get_world_size(group)
    plan, generator = plan_of(kind, ranks), torch.Generator("cpu").manual_seed(0)

    def normal(*shape):
        made = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
        return made.to(TYPE).double()

    with mock.patch.multiple(layers, **SIZES), torch.device("cpu"):
        layer, parents = layers.LAYERS[name], layers.parents_of(plan)
        given = layer.draw(normal, ROWS)
        given = [[x.to(TYPE).double() for x in xs] for xs in given]
        weights = normal(*by_rows(layer, given, torch.float64, 0, parents)[0].shape)
        wanted, plain = (
            by_rows(layer, given, dtype, weights, parents) for dtype in (torch.float64, TYPE)
        )
    found = by_kernels(group, layer, given, weights, plan.bind(group))
    for place, (ours, theirs, exact) in enumerate(zip(found, plain, wanted)):
        bound = 2 * error(theirs, exact) + 1e-6 * exact.norm().item()
        assert error(ours, exact) <= bound, f"{name}: {place}, of results and gradients"


@pytest.mark.parametrize("kind", ["documents", "tree"])
@pytest.mark.parametrize("name", KERNELS)
def test_alone(name, kind):
    check(None, name, kind)


@pytest.mark.parametrize("kind", ["documents", "tree"])
@pytest.mark.parametrize("name", KERNELS)
def test_graphs(name, kind):
    """Forward and backward captured once, replayed with other values."""
    with mock.patch.multiple(layers, **SIZES):
        layer, bound = layers.LAYERS[name], plan_of(kind, 1).bind()
        given = layer.draw(lambda *shape: torch.randn(*shape, device="cuda"), ROWS)
    inputs = [bound.dispatch(x.to(TYPE)).requires_grad_() for x in given[0]]
    parameters = [x.to(TYPE).requires_grad_() for x in given[1]]
    leaves = [*inputs, *parameters]

    def step():
        out = layer.under(bound, inputs, parameters)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]

    graph, found = capture(step)
    with torch.no_grad():
        inputs[0].copy_(inputs[0].flip(0))
    graph.replay()
    for ours, wanted in zip(found, step()):
        assert (ours.double() - wanted.double()).norm() <= 1e-2 * wanted.double().norm()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU alone")
@over(2, ranks="gpu_ranks")
@pytest.mark.parametrize("kind", ["documents", "tree"])
@pytest.mark.parametrize("name", KERNELS)
def test_over_ranks(group, name, kind):
    check(group, name, kind)
