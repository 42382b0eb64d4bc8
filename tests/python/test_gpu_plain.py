# SPDX-License-Identifier: Apache-2.0
"""On a GPU, as in test_plain_tensors.py and test_compile_shared.py on the host: tensors without
memory are refused by name, and a compiled call takes one tensor twice.
"""

import pytest
import torch

import dense
from magi_attention.api import flex_flash_attn_func
from on_gpu import NEEDS_GPU, PLACES, ROWS, bound_plan, inputs, ranges_on
from test_plain_tensors import KINDS, freed, is_refused, nested

pytestmark = NEEDS_GPU
QKV = ("q", "k", "v")
EACH_KIND = pytest.mark.parametrize("change", KINDS, ids=lambda change: change.__name__)


def given_on(place):
    ranges = ranges_on(dense.masks(ROWS)["varlen_causal"], place)
    sink = torch.randn(2, 8, device="cuda", requires_grad=True)
    names = ("q_ranges", "k_ranges", "attn_type_map")
    return {**dict(zip(QKV, inputs())), "sink": sink, **dict(zip(names, ranges))}


@PLACES
@EACH_KIND
def test_flex(change, place):
    given = given_on(place)
    for name in given:
        changed = {**given, name: change(given[name].detach())}
        is_refused(lambda: flex_flash_attn_func(**changed), name, KINDS[change])
    out, _ = flex_flash_attn_func(**given)
    out.sum().backward()
    assert given["sink"].grad.isfinite().all()


@EACH_KIND
def test_calc_attn(change):
    _, bound = bound_plan()
    given = {name: bound.dispatch(t.detach()) for name, t in zip(QKV, inputs())}
    given["sink"] = torch.randn(2, 8, device="cuda")
    for name in given:
        changed = {**given, name: change(given[name])}
        is_refused(lambda: bound.calc_attn(**changed), name, KINDS[change])
    is_refused(lambda: bound.dispatch(change(inputs()[0].detach())), "x", KINDS[change])
    assert bound.calc_attn(**given)[0].isfinite().all()


@PLACES
def test_backward(place):
    """Gradients that have no memory, and inputs that lost theirs since forward."""
    given = given_on(place)
    out, _ = flex_flash_attn_func(**given)
    for change, text in KINDS.items():
        if change is not nested:  # torch refuses it
            is_refused(
                lambda: out.backward(change(out.detach()), retain_graph=True),
                "the gradient of out", text,
            )  # fmt: skip
    given["sink"].untyped_storage().resize_(0)
    is_refused(lambda: out.sum().backward(), "sink", KINDS[freed])


@PLACES
def test_one_tensor_twice_in_a_graph(place):
    ranges, _, types = ranges_on(dense.masks(ROWS)["varlen_causal"], place)

    def attend(q, kv):
        return flex_flash_attn_func(q, kv, kv, ranges, ranges, types)[0]

    results = []
    for call in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        q, kv, _ = inputs()
        out = call(q, kv)
        results.append((out, *torch.autograd.grad(out.float().pow(2).sum(), (q, kv))))
    for eager, graph in zip(*results):
        assert eager.isfinite().all() and (eager - graph).abs().max() <= 4e-2 * eager.abs().max()
