# SPDX-License-Identifier: Apache-2.0
"""Ranks that call with other plans, options or arguments, in what moves rows besides calc_attn."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from magi_attention import masks
from magi_attention.comm.first_call import first_calls_of
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.errors import CommError
from magi_attention.plan import Plan
from ranks import over, own_group, refuses, refuses_soon

ROWS, HEADS, DIM = 96, (4, 2), 8


def bound_under(group, mask, chunk_size: int):
    config = DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=chunk_size))
    sizes = {"num_heads_q": HEADS[0], "num_heads_kv": HEADS[1], "head_dim": DIM}
    return Plan.from_mask(mask, cp_size=group.size(), config=config, **sizes).bind(group)


def two_plans(group):
    """Of equal sizes, which place rows otherwise."""
    given = [masks.from_document_ids([0] * ROWS, causal=causal) for causal in (False, True)]
    plans = [bound_under(group, mask, 4) for mask in given]
    assert plans[0].local_rows == plans[1].local_rows
    assert not torch.equal(plans[0].position_ids, plans[1].position_ids)
    return plans


def inputs(bound, width: int = DIM):
    shapes = ((bound.local_rows, heads, width) for heads in (HEADS[0], HEADS[1], HEADS[1]))
    return [torch.ones(shape, requires_grad=True) for shape in shapes]


def undispatch(bound, width: int):
    return bound.undispatch(inputs(bound, width)[0])


def undispatch_sum(bound, width: int):
    return bound.rows.reduce(torch.ones(ROWS, width))  # the gradient of a partial undispatch


def roll(bound, width: int):
    return bound.roll(inputs(bound, width)[0], 1)


def dispatch(bound, width: int):
    whole = torch.ones(ROWS, width, requires_grad=True)
    local = bound.dispatch(whole)
    return lambda: local.sum().backward()


def chosen(bound, width: int):
    return sparse(bound)


def sparse(bound, **options):
    lists = torch.zeros(bound.local_rows, HEADS[1], 1, dtype=torch.int32)
    return bound.calc_sparse_attn(*inputs(bound), lists, **options)[0]


CALLS = {call.__name__: call for call in (undispatch, undispatch_sum, roll, dispatch, chosen)}


def _call(name: str, bound, width: int):
    """What moves rows; of dispatch that is the gradient alone."""
    return dispatch(bound, width) if name == "dispatch" else lambda: CALLS[name](bound, width)


@over(2, 3)
@pytest.mark.parametrize("name", CALLS)
def test_other_plans(group, name):
    """Those that all ranks have called with before, too."""
    plans = two_plans(group)
    for bound in plans if name == "chosen" else ():
        sparse(bound)
    is_odd = dist.get_rank(group) == group.size() - 1
    refuses(_call(name, plans[is_odd], DIM), CommError, "rank .*, plan 0x")
    assert undispatch(plans[0], DIM).shape[0] == ROWS


@over(2)
@pytest.mark.parametrize("name", ["undispatch", "roll", "dispatch"])
def test_other_widths(group, name: str):
    bound = two_plans(group)[0]
    width = DIM + (dist.get_rank(group) == 0)
    text = "other options than rank .: shape of the sequence; in stage 0"
    refuses(_call(name, bound, width), CommError, text)
    assert undispatch(bound, DIM).shape[0] == ROWS


@over(2)
def test_other_options_of_chosen_keys(group):
    bound = two_plans(group)[0]
    is_odd = dist.get_rank(group) == group.size() - 1
    for given, text in (
        ({"softmax_scale": 0.5}, r"softmax_scale: .* has 0\.5"),
        ({"sparse_k_block_size": 2}, "sparse_k_block_size: .* 1, rank . has 2"),
    ):
        given = given if is_odd else {}
        refuses(lambda: sparse(bound, **given), CommError, "^ranks differ in " + text)
    assert sparse(bound).isfinite().all()


@over(2)
def test_refused_chosen_keys(group):
    """A refusal is told in the first call, where others compare new options, and in later calls."""
    bound = two_plans(own_group(dist.get_process_group_ranks(group)))[0]
    lists = torch.zeros(bound.local_rows, HEADS[1], 1, dtype=torch.int32)
    q, k, v = inputs(bound)

    def refused(wrong: tuple = (lists[1:],), what: str = "has shape", **options) -> None:
        if dist.get_rank(group) == 0:
            refuses_soon(lambda: bound.calc_sparse_attn(q, k, v, *wrong), ValueError, what)
        else:
            text = f"rank 0 refused its arguments.*: ValueError: index_sparse_indices.* {what}"
            refuses_soon(lambda: sparse(bound, **options), CommError, text)
        dist.barrier(group)

    refused()
    assert sparse(bound).isfinite().all()
    refused((), "neither of them", softcap=3.0)
    assert sparse(bound).isfinite().all()
    refused()  # rows were waited for, so that the group is over


@over(2)
@pytest.mark.parametrize("form", ["lists", "blocks", "operators"])
def test_a_backward_of_chosen_keys_that_fails(group, form: str):
    """Ranks that wait for its gradients learn of it at once."""
    bound = two_plans(own_group(dist.get_process_group_ranks(group)))[0]
    size = 1 if form == "lists" else 4  # of a block
    lists = torch.zeros(bound.local_rows // size, HEADS[1], 1, dtype=torch.int32)
    sizes = {"sparse_k_block_size": size, "q_block_size": size}
    is_odd = dist.get_rank(group) == 0
    with ExitStack() as around:
        if is_odd:
            around.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda x: x, _no))
        if form == "operators":
            around.enter_context(FlopCounterMode(display=False))
        out, _ = bound.calc_sparse_attn(*inputs(bound), lists, **sizes)
    wanted = (ValueError, "^no$") if is_odd else (CommError, "rank 0 .* ValueError: no")
    refuses_soon(lambda: out.sum().backward(), *wanted)


def _no(x):
    raise ValueError("no")


@over(2)
@pytest.mark.parametrize("name", ["undispatch", "roll"])
def test_refused_rows(group, name: str):
    """A refusal is told in the group's first call and in later ones."""
    bound = two_plans(own_group(dist.get_process_group_ranks(group)))[0]
    x = torch.ones(bound.local_rows, DIM)
    rest = (1,) if name == "roll" else ()
    for round in range(2):
        if dist.get_rank(group) == 0:
            refuses_soon(lambda: getattr(bound, name)(x[1:], *rest), ValueError, "x has shape")
        else:
            text = "rank 0 refused its arguments.*: ValueError: x has shape"
            refuses_soon(lambda: getattr(bound, name)(x, *rest), CommError, text)
        dist.barrier(group)
        if round == 0:
            assert getattr(bound, name)(x, *rest).eq(1).all()


@over(2)
def test_lists_of_blocks_stay_small(group):
    """A call with blocks takes memory in proportion to its lists and keys."""
    rows, block, entries = 2048, 64, 64
    mask = masks.from_document_ids([0] * rows, causal=False)
    bound = bound_under(group, mask, 256)
    lists = torch.randint(0, rows // block, (bound.local_rows, HEADS[1], entries)).int()
    q, k, v = inputs(bound)
    with torch.profiler.profile(profile_memory=True) as profile:
        bound.calc_sparse_attn(q, k, v, lists, block)[0].sum().backward()
    most = max(event.self_cpu_memory_usage for event in profile.events())
    assert most <= 4 * lists.numel() * lists.element_size(), most


class _OnGpu:
    """Looks like a tensor on a GPU to what compares a call."""

    dtype, device = torch.float32, torch.device("cuda", 0)

    def __init__(self, width: int) -> None:
        self.shape = torch.Size([48, width])


@over(2)
def test_compared_on_gpus(group):
    """What transports between GPUs do not compare is, at the first call of a kind."""
    plans, rank = two_plans(group), dist.get_rank(group)
    for arguments, text in (
        ((plans[rank].rows, "roll", 4, 1), "plan: rank 0 has"),
        ((plans[0].rows, "roll", 4, 1 + rank), "shift: rank 0 has 1, rank 1 has 2"),
        ((plans[0].rows, "roll", 4 + rank, 1), r"shape of a row: rank 0 has \[4\]"),
        ((plans[0].rows, ("roll", "undispatch")[rank], 4, 1), "function: rank 0 has roll"),
    ):
        rows, function, width, shift = arguments

        def call(rows=rows, function=function, width=width, shift=shift) -> None:
            rows.begin(function, _OnGpu(width), shift)

        refuses(call, CommError, "ranks differ in .*" + text)
    rows.begin("roll", _OnGpu(4), 1)
    first_calls_of(group).compare = None  # not called again
    rows.begin("roll", _OnGpu(4), 1)
    del first_calls_of(group).compare
