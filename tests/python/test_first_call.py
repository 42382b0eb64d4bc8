# SPDX-License-Identifier: Apache-2.0
"""What ranks compare at the first call with a plan, beyond the plan."""

from __future__ import annotations

import datetime
import gc
import os
import random
import threading
import time
import weakref
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import dense
from magi_attention import api
from magi_attention._native.library import check, lib
from magi_attention.comm.first_call import FirstCalls, first_calls_of
from magi_attention.comm.process_group import ProcessGroupTransport
from magi_attention.common import AttnRanges
from magi_attention.errors import CommError
from pipeline_cases import Case, make_key, make_tensors
from ranks import SOON, over, own_group, refuses, refuses_soon
from test_transport import on_threads

CASE = Case(rows=64, heads=(4, 2), head_dim=8)


def key_and_rows(group, mask: str = "causal", case: Case = CASE):
    """The key, q, k and v."""
    key = make_key(dense.masks(case.rows)[mask], case, group)
    return key, *(api.dispatch(t, key).float() for t in make_tensors(case)[:3])


def _call(group, odd: dict):
    """calc_attn of the key; the last rank changes its arguments by `odd`."""
    key, q, k, v = key_and_rows(group)
    given = {"q": q, "k": k, "v": v, "key": key}
    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        odd = dict(odd)
        dtype = odd.pop("dtype", torch.float32)
        given |= {name: given[name].to(dtype) for name in "qkv"} | odd
    return lambda: api.calc_attn(**given)


DIFFERENCES = {
    "dtype": ({"dtype": torch.bfloat16}, "dtype: .* float32, rank 1 has bfloat16"),
    "scale": ({"softmax_scale": 0.5}, r"softmax_scale: .* 0\.3535534, rank 1 has 0\.5"),
    "softcap": ({"softcap": 3.0}, "softcap: .* 0, rank 1 has 3"),
    "sink": ({"sink": torch.zeros(1, 4)}, "sink: .* none, rank 1 has 1 in layout sh"),
    "max_logits": ({"return_max_logits": True}, "return_max_logits: .* False, rank 1 has True"),
    "both": ({"softcap": 3.0, "return_max_logits": True}, "softcap: .*; in return_max_logits"),
}


@over(2)
@pytest.mark.parametrize("name", DIFFERENCES)
def test_difference(group, name):
    """A CommError on all ranks, at once; equal arguments run afterwards."""
    odd, text = DIFFERENCES[name]
    refuses_soon(_call(group, odd), CommError, "^ranks differ in .*" + text)
    assert _call(group, {})()[0].isfinite().all()


@over(2)
def test_nvlink_compares_a_groups_first_plan(group):
    """Those behind it are compared by the GPUs."""
    first_calls = first_calls_of(group)
    first_calls.have_agreed, before = False, first_calls._round
    for rows in (64, 96, 128):
        ranges = AttnRanges.from_ranges([(0, rows)])
        plan = api.Plan.from_ranges(
            ranges, ranges, "causal", rows, cp_size=dist.get_world_size(group), num_heads_q=4,
            num_heads_kv=2, head_dim=8,
        )  # fmt: skip
        bound = plan.bind(group)
        bound.attention._named["transport"] = "nvlink"
        q, k, v = (torch.ones(bound.local_rows, heads, 8) for heads in (4, 2, 2))
        assert bound.calc_attn(q, k, v)[0].isfinite().all()
        assert first_calls._round == before + 1


@over(2)
def test_sinks_of_other_layouts(group):
    key, q, k, v = key_and_rows(group)
    is_per_row = dist.get_rank(group) == 0
    sink = torch.zeros(q.shape[0], 2, 4) if is_per_row else torch.zeros(2, 4)
    text = "sink: rank 0 has 2 in layout ssh, rank.* 2 in layout sh"
    refuses(lambda: api.calc_attn(q, k, v, key, sink=sink), CommError, text)
    sink = torch.zeros(1 + dist.get_rank(group), 4)
    text = "sink: rank 0 has 1 in layout sh, rank 1 has 2 in layout sh"
    refuses(lambda: api.calc_attn(q, k, v, key, sink=sink), CommError, text)


@over(2, 4)
def test_variables(group):
    """Of the environment, as the ranks of a launcher may have them."""
    rank = dist.get_rank(group)
    for variable, value, other in (
        ("MAGI_ATTENTION_PRECISION", "bf16", "None"),
        ("MAGI_ATTENTION_DSINK_ALL_REDUCE_OP", "avg", "none"),
    ):
        with mock.patch.dict(os.environ, {variable: value} if rank == 0 else {}):
            text = f"{variable}: rank 0 has .*, rank.* {other}"
            refuses(_call(group, {}), CommError, text)


@over(2, 4)
def test_widths_and_plans(group):
    """Ranks whose keys differ; both the plan and what differs in it are named."""
    rank = dist.get_rank(group)
    case = Case(rows=64, heads=(4, 2), head_dim=8 + 8 * (rank == 0))
    key = make_key(dense.masks(64)["causal"], case, group)
    q, k, v = (api.dispatch(t, key) for t in make_tensors(case)[:3])
    refuses(lambda: api.calc_attn(q, k, v, key), CommError,
            "plan: rank 0 has .*; in head_dim of q, v: rank 0 has 16, 16, rank.* 8, 8")  # fmt: skip


@over(2, 4)
def test_refusal(group):
    """A rank that refuses its arguments, the first of two or the last of four, tells the others,
    and the plan runs when all try again; so it does where the refusing rank tries again alone.
    """
    rank = dist.get_rank(group)
    key, q, k, v = key_and_rows(group)
    who = 0 if dist.get_world_size(group) == 2 else 3
    for _ in range(3):
        if rank == who:
            text = "q has .* rows; allowed"
            refuses_soon(lambda: api.calc_attn(q[1:], k, v, key), ValueError, text)
        else:
            text = f"rank {who} refused its arguments before anything was sent: ValueError: q has"
            refuses_soon(lambda: api.calc_attn(q, k, v, key), CommError, text)
        dist.barrier(group)
    wanted = api.calc_attn(q, k, v, key)[0]
    for _ in range(3):
        api.clear_cache(group)
        again = make_key(dense.masks(64)["causal"], CASE, group)
        dist.barrier(group)
        if rank == who:
            for _ in range(2):
                refuses(lambda: api.calc_attn(q[1:], k, v, again), ValueError, "q has .* rows")
        dist.barrier(group)  # the others come when the refusal is history
        if rank == who:
            refuses(lambda: api.calc_attn(q, k, v[1:], again), ValueError, "v has")
            time.sleep(0.1)
            found = api.calc_attn(q, k, v, again)[0]
        else:
            time.sleep(0.5)
            found = api.calc_attn(q, k, v, again)[0]
        assert torch.equal(found, wanted)


@over(2)
def test_refusal_once_it_runs(group):
    """Ranks whose plan has run refuse by themselves; other options are compared, once."""
    key, q, k, v = key_and_rows(group)
    api.calc_attn(q, k, v, key)
    compared = []
    with mock.patch.object(first_calls_of(group), "compare", compared.append):
        for softcap in (2.0, 0.0, 2.0):
            api.calc_attn(q, k, v, key, softcap=softcap)
            refuses(lambda: api.calc_attn(q, k[1:], v, key), ValueError, "k has")
        api.calc_attn(q.bfloat16(), k.bfloat16(), v.bfloat16(), key)
        api.calc_attn(q, k, v, key)
    assert [(given["softcap"], given["dtype"]) for given in compared] == [
        ("2", "float32"), ("0", "bfloat16"),
    ]  # fmt: skip


@over(2)
@pytest.mark.parametrize("who", [0, 1])
def test_later_refusal(group, who: int):
    """A rank that refuses a call of a plan that has run ends those who wait for its rows, at once;
    what all have refused does not, however late one of them comes.
    """
    others, group = group, own_group(dist.get_process_group_ranks(group))
    rank = dist.get_rank(group)
    key, q, k, v = key_and_rows(group, "full")
    for late in (who, 1 - who):
        api.calc_attn(q, k, v, key)
        for _ in range(2):
            refuses(lambda: api.calc_attn(q, k[1:], v, key), ValueError, "k has")
        if rank == late:
            time.sleep(0.4)
    api.calc_attn(q, k, v, key)
    if rank == who:
        refuses_soon(lambda: api.calc_attn(q, k[1:], v, key), ValueError, "k has")
        time.sleep(0.6)  # no row is sent
        refuses_soon(lambda: api.calc_attn(q, k, v, key), CommError, "aborted: rank")
    else:
        text = f"rank {who} refused its arguments: ValueError: k has"
        refuses_soon(lambda: api.calc_attn(q, k, v, key), CommError, text)
    # the group is over, for the rank that goes on as well
    refuses_soon(lambda: api.calc_attn(q, k, v, key), CommError, "aborted: rank")
    dist.barrier(others)


@over(3)
@pytest.mark.parametrize("who", [0, 2])
def test_later_refusal_while_others_compare(group, who):
    """A rank that refuses a call of a plan that has run, to which the others give new options:
    they are told, at once and once, and all can call again.
    """
    others, group = group, own_group(dist.get_process_group_ranks(group))
    rank = dist.get_rank(group)
    key, q, k, v = key_and_rows(group, "full")
    api.calc_attn(q, k, v, key)
    for number in range(4):
        given = {"softcap": 1.0 + number}
        if number == 3:  # all refuse, which is news to nobody
            refuses(lambda: api.calc_attn(q, k[1:], v, key, **given), ValueError, "k has")
        else:
            time.sleep(0.3 * number * (rank == who))
            if rank == who:
                refuses_soon(lambda: api.calc_attn(q, k[1:], v, key, **given), ValueError, "k has")
            else:
                text = f"rank {who} refused its arguments.*: ValueError: k has"
                refuses_soon(lambda: api.calc_attn(q, k, v, key, **given), CommError, text)
            dist.barrier(others)
        if rank == who:
            time.sleep(0.5 * (number != 1))
        assert api.calc_attn(q, k, v, key, **given)[0].isfinite().all()


@over(2)
def test_later_refusal_without_padding(group):
    """Rows without padding are refused as others are."""
    group = own_group(dist.get_process_group_ranks(group))
    case = replace(CASE, rows=61)
    key, q, k, v = key_and_rows(group, "full", case)
    api.calc_attn(q, k, v, key)
    bound = api.dist_attn_runtime_dict_mgr.get(key).bound
    num_valid = bound.rows.num_valid
    if num_valid < bound.local_rows:
        given = q[:num_valid], k[1:], v[:num_valid], key
        refuses_soon(lambda: api.calc_attn(*given), ValueError, "k has")
    else:
        text = "refused its arguments: ValueError: k has"
        refuses_soon(lambda: api.calc_attn(q, k, v, key), CommError, text)


@over(2)
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("looks", [False, True])
def test_later_abort(group, looks: bool, who: int):
    """A rank that fails within a call ends those who wait for its rows; a plan that is bound anew
    runs. looks: that rank has bound a plan for itself, to look at it.
    """
    others, group = group, own_group(dist.get_process_group_ranks(group))
    key, q, k, v = key_and_rows(group, "full")
    bound = api.dist_attn_runtime_dict_mgr.get(key).bound
    call = (lambda: bound.calc_attn(q, k, v)) if looks else (lambda: api.calc_attn(q, k, v, key))
    if looks:
        plan = bound.plan
        if dist.get_rank(group) == who:
            plan.bind(group)
        bound = plan.bind(group)
    wanted = call()[0]
    if dist.get_rank(group) == who:
        check(lib.magi_communicator_abort(bound.communicator.address, b"a reason"))
    refuses_soon(call, CommError, f"rank {who} aborted: a reason")
    group = own_group(dist.get_process_group_ranks(others))
    key = make_key(dense.masks(64)["full"], CASE, group)
    assert torch.equal(api.calc_attn(q, k, v, key)[0], wanted)


@over(2)
@pytest.mark.parametrize("name", [*DIFFERENCES, "all"])
def test_later_difference(group, name):
    """A CommError on all ranks, at once, where one changes what all had agreed on, or all do."""
    group = own_group(dist.get_process_group_ranks(group))
    for _ in range(2):
        _call(group, {})()
    rank = dist.get_rank(group)
    if name == "all":
        given = {"softmax_scale": 0.25 + rank}
        wanted = "softmax_scale: rank 0 has 0.25, rank 1 has 1.25"
        refuses_soon(lambda: _call(group, {})() and _changed(group, given), CommError, wanted)
    else:
        odd, text = DIFFERENCES[name]
        refuses_soon(_call(group, odd), CommError, "ranks differ in .*" + text)


def _changed(group, given: dict):
    key, q, k, v = key_and_rows(group)
    return api.calc_attn(q, k, v, key, **given)


@over(2)
def test_a_group_is_let_go_of_after_a_difference(group):
    """At once: it waits for the rows that a rank has not sent until each rank has let go of it."""

    def differ():
        pair = own_group([0, 1])
        _call(pair, {})()
        odd, text = DIFFERENCES["scale"]
        refuses(_call(pair, odd), CommError, "ranks differ in .*" + text)
        api.clear_cache()
        dist.barrier(group)
        dist.destroy_process_group(pair)
        return weakref.ref(pair)

    gc.collect()
    gc.disable()
    try:
        gone = differ()
        begin = time.monotonic()
        _call(group, {})()
        assert gone() is None and time.monotonic() - begin < SOON
    finally:
        gc.enable()


@over(2)
def test_later_agreement(group):
    """All ranks change their options, one of them late: no rank takes that for a difference."""
    group = own_group(dist.get_process_group_ranks(group))
    rank = dist.get_rank(group)
    for number in range(6):
        if rank == number % 2:
            time.sleep(0.4)
        assert _changed(group, {"softcap": 1.0 + number // 2})[0].isfinite().all()


@over(2)
def test_compiled(group):
    """Operators compare as well."""
    odd = {"softmax_scale": 0.5} if dist.get_rank(group) == 0 else {}
    key, q, k, v = key_and_rows(group)
    call = torch.compile(api.calc_attn, backend="aot_eager", fullgraph=True)
    refuses(lambda: call(q, k, v, key, **odd), CommError, "^ranks differ in softmax_scale")
    assert torch.equal(call(q, k, v, key)[0], api.calc_attn(q, k, v, key)[0])


def rounds(size: int, body, seconds: float = 20) -> list:
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=seconds)
    return [
        *on_threads(size, lambda rank: body(rank, FirstCalls(store, rank, size, timeout))),
        store,
    ]


def test_rounds_leave_little_behind():
    def body(rank, first_calls):
        for number in range(20):
            first_calls.compare({"number": str(number)})

    *results, store = rounds(3, body)
    assert results == [None] * 3
    assert store.num_keys() <= 2 * (3 + 1) + 1 + 3  # and how manieth group it was, of each rank


@pytest.mark.parametrize("late", [0, 1])
def test_a_group_reads_nothing_of_one_before_it_that_had_its_store_and_name(late):
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=20)
    begin = threading.Barrier(2, timeout=30)

    def body(rank):
        def group():
            begin.wait()
            time.sleep(0.2 * (rank == late))
            return FirstCalls(store, rank, 2, timeout)

        group().compare({"number": "1"})
        with pytest.raises(CommError, match=r"^ranks differ in number: rank 0 has 0, rank 1 has 1"):
            group().compare({"number": str(rank)})
        first_calls = group()
        if rank != late:
            first_calls.refuse(ValueError("no"))  # nobody is told
        group().compare({"number": "2"})

    assert on_threads(2, body) == [None] * 2


def test_rank_that_does_not_come_is_named():
    def body(rank, first_calls):
        if rank != 2:
            first_calls.compare({})

    *results, _ = rounds(4, body, seconds=0.5)
    for rank in (0, 1, 3):
        assert isinstance(results[rank], CommError) and results[rank].failure == "timeout"
        assert str(results[rank]).startswith("rank 0 waited for rank 2 to make the first call")
    assert results[2] is None


@pytest.mark.parametrize("refusing", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_refusals_that_race(refusing):
    """Ranks refuse, twice at times, and try again at any moment: nobody hangs, no rank takes its
    own refusal for another's, and the rounds end together.
    """
    begin = threading.Barrier(3, timeout=30)

    def body(rank, first_calls):
        generator, told = random.Random(rank), 0
        for number in range(100):
            begin.wait()
            time.sleep(generator.choice((0, 0, 0.001)))
            for _ in range(generator.choice((1, 2)) if rank in refusing else 0):
                first_calls.refuse(ValueError("no"))
            while True:
                try:
                    first_calls.compare({"number": str(number)})
                    break
                except CommError as error:
                    assert error.failure == "aborted" and f"rank {rank} " not in str(error)
                    told += 1
        return told

    *results, store = rounds(3, body)
    assert all(isinstance(told, int) for told in results), results
    assert store.num_keys() <= 2 * (3 + 1 + 2 * 100)


def test_calls_that_all_refuse():
    """A refusal of a call that this rank refused as well is no answer to a later one."""

    def body(rank, first_calls):
        for _ in range(20):
            for _ in range(5):
                first_calls.refuse(ValueError("no"))
                time.sleep(0.002 * (rank == 2))
            first_calls.compare({})

    *results, _ = rounds(3, body)
    assert results == [None] * 3, results


class EndsAsTheWaitGivesUp:
    """Work of a process group that is done between the end of a short wait and the next look."""

    def __init__(self, error=None):
        self.error = error

    def wait(self, *limits):
        if limits:
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error

    def is_completed(self):
        return True


def test_rows_that_come_as_the_wait_gives_up_are_no_failure():
    assert ProcessGroupTransport._has_come(None, EndsAsTheWaitGivesUp(), 1)


def test_work_that_failed_meanwhile_says_why():
    with pytest.raises(RuntimeError, match="connection closed"):
        work = EndsAsTheWaitGivesUp(RuntimeError("connection closed"))
        ProcessGroupTransport._has_come(None, work, 1)
