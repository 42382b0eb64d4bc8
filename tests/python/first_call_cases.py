# SPDX-License-Identifier: Apache-2.0
"""Cases in which ranks call one plan with different arguments, or one of them with wrong ones."""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import replace

import torch
import torch.distributed as dist

import dense
from error_cases import refuses
from magi_attention import api
from magi_attention._native.library import check, lib
from magi_attention.comm.first_call import first_calls_of
from magi_attention.common import AttnRanges
from magi_attention.errors import CommError
from pipeline_cases import Case, make_key, make_tensors

CASE = Case(rows=64, heads=(4, 2), head_dim=8)
SOON = 10.0  # seconds, of the 20 after which the group's own collectives fail


def _call(group, odd: dict):
    """calc_attn of the key; the last rank changes its arguments by `odd`."""
    key = make_key(dense.masks(64)["causal"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
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


def difference(group, name: str) -> None:
    """A CommError on all ranks, at once; equal arguments run afterwards."""
    odd, text = DIFFERENCES[name]
    begin = time.monotonic()
    refuses(_call(group, odd), CommError, "^ranks differ in .*" + text)
    assert time.monotonic() - begin < SOON
    assert _call(group, {})()[0].isfinite().all()
    api.clear_cache(group)


def nvlink_compares_a_groups_first_plan(group) -> None:
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


def sinks_of_other_layouts(group) -> None:
    key = make_key(dense.masks(64)["causal"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
    is_per_row = dist.get_rank(group) == 0
    sink = torch.zeros(q.shape[0], 2, 4) if is_per_row else torch.zeros(2, 4)
    text = "sink: rank 0 has 2 in layout ssh, rank.* 2 in layout sh"
    refuses(lambda: api.calc_attn(q, k, v, key, sink=sink), CommError, text)
    sink = torch.zeros(1 + dist.get_rank(group), 4)
    text = "sink: rank 0 has 1 in layout sh, rank 1 has 2 in layout sh"
    refuses(lambda: api.calc_attn(q, k, v, key, sink=sink), CommError, text)
    api.clear_cache(group)


def variables(group) -> None:
    """Of the environment, as the ranks of a launcher may have them."""
    rank = dist.get_rank(group)
    for variable, value, other in (
        ("MAGI_ATTENTION_PRECISION", "bf16", "None"),
        ("MAGI_ATTENTION_DSINK_ALL_REDUCE_OP", "avg", "none"),
    ):
        if rank == 0:
            os.environ[variable] = value
        try:
            text = f"{variable}: rank 0 has .*, rank.* {other}"
            refuses(_call(group, {}), CommError, text)
        finally:
            os.environ.pop(variable, None)
    api.clear_cache(group)


def widths_and_plans(group) -> None:
    """Ranks whose keys differ; both the plan and what differs in it are named."""
    rank = dist.get_rank(group)
    case = Case(rows=64, heads=(4, 2), head_dim=8 + 8 * (rank == 0))
    key = make_key(dense.masks(64)["causal"], case, group)
    q, k, v = (api.dispatch(t, key) for t in make_tensors(case)[:3])
    refuses(lambda: api.calc_attn(q, k, v, key), CommError,
            "plan: rank 0 has .*; in head_dim of q, v: rank 0 has 16, 16, rank.* 8, 8")  # fmt: skip
    api.clear_cache(group)


def refusal(group, who: int) -> None:
    """A rank that refuses its arguments tells the others, and the plan runs when all try again;
    so it does where the refusing rank tries again alone.
    """
    rank = dist.get_rank(group)
    key = make_key(dense.masks(64)["causal"], CASE, group)
    q, k, v = (api.dispatch(t, key) for t in make_tensors(CASE)[:3])
    for _ in range(3):
        begin = time.monotonic()
        if rank == who:
            refuses(lambda: api.calc_attn(q[1:], k, v, key), ValueError, "q has .* rows; allowed")
        else:
            text = f"rank {who} refused its arguments before anything was sent: ValueError: q has"
            refuses(lambda: api.calc_attn(q, k, v, key), CommError, text)
        assert time.monotonic() - begin < SOON
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
    api.clear_cache(group)


def refusal_once_it_runs(group) -> None:
    """Ranks whose plan has run refuse by themselves; other options are compared, once."""
    key = make_key(dense.masks(64)["causal"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
    api.calc_attn(q, k, v, key)
    compared = []
    first_calls = first_calls_of(group)
    first_calls.compare, kept = compared.append, first_calls.compare
    try:
        for softcap in (2.0, 0.0, 2.0):
            api.calc_attn(q, k, v, key, softcap=softcap)
            refuses(lambda: api.calc_attn(q, k[1:], v, key), ValueError, "k has")
        api.calc_attn(q.bfloat16(), k.bfloat16(), v.bfloat16(), key)
        api.calc_attn(q, k, v, key)
    finally:
        first_calls.compare = kept
    assert [(given["softcap"], given["dtype"]) for given in compared] == [
        ("2", "float32"), ("0", "bfloat16"),
    ]  # fmt: skip
    api.clear_cache(group)


def later_refusal(group, who: int) -> None:
    """A rank that refuses a call of a plan that has run ends those who wait for its rows, at once;
    what all have refused does not, however late one of them comes.
    """
    others, group = group, _new_group(group)
    rank = dist.get_rank(group)
    key = make_key(dense.masks(64)["full"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
    for late in (who, 1 - who):
        api.calc_attn(q, k, v, key)
        for _ in range(2):
            refuses(lambda: api.calc_attn(q, k[1:], v, key), ValueError, "k has")
        if rank == late:
            time.sleep(0.8)
    api.calc_attn(q, k, v, key)
    begin = time.monotonic()
    if rank == who:
        refuses(lambda: api.calc_attn(q, k[1:], v, key), ValueError, "k has")
        time.sleep(1.5)
        refuses(lambda: api.calc_attn(q, k, v, key), CommError, "aborted: rank")  # no row was sent
    else:
        text = f"rank {who} refused its arguments: ValueError: k has"
        refuses(lambda: api.calc_attn(q, k, v, key), CommError, text)
    # the group is over, for the rank that goes on as well
    refuses(lambda: api.calc_attn(q, k, v, key), CommError, "aborted: rank")
    assert time.monotonic() - begin < SOON
    dist.barrier(others)
    api.clear_cache(group)


def later_refusal_while_others_compare(group, who: int) -> None:
    """A rank that refuses a call of a plan that has run, to which the others give new options:
    they are told, at once and once, and all can call again.
    """
    others, group = group, _new_group(group)
    rank = dist.get_rank(group)
    key = make_key(dense.masks(64)["full"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
    api.calc_attn(q, k, v, key)
    for number in range(4):
        given = {"softcap": 1.0 + number}
        if number == 3:  # all refuse, which is news to nobody
            refuses(lambda: api.calc_attn(q, k[1:], v, key, **given), ValueError, "k has")
        else:
            begin = time.monotonic()
            time.sleep(0.3 * number * (rank == who))
            if rank == who:
                refuses(lambda: api.calc_attn(q, k[1:], v, key, **given), ValueError, "k has")
            else:
                text = f"rank {who} refused its arguments.*: ValueError: k has"
                refuses(lambda: api.calc_attn(q, k, v, key, **given), CommError, text)
            assert time.monotonic() - begin < SOON
            dist.barrier(others)
        if rank == who:
            time.sleep(1.2 * (number != 1))
        assert api.calc_attn(q, k, v, key, **given)[0].isfinite().all()
    api.clear_cache(group)


def later_refusal_without_padding(group) -> None:
    """Rows without padding are refused as others are."""
    group = _new_group(group)
    case = replace(CASE, rows=61)
    key = make_key(dense.masks(61)["full"], case, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(case)[:3])
    api.calc_attn(q, k, v, key)
    bound = api.dist_attn_runtime_dict_mgr.get(key).bound
    num_valid = bound.rows.num_valid
    begin = time.monotonic()
    if num_valid < bound.local_rows:
        given = q[:num_valid], k[1:], v[:num_valid], key
        refuses(lambda: api.calc_attn(*given), ValueError, "k has")
    else:
        text = "refused its arguments: ValueError: k has"
        refuses(lambda: api.calc_attn(q, k, v, key), CommError, text)
    assert time.monotonic() - begin < SOON
    api.clear_cache(group)


def later_abort(group, who: int) -> None:
    """A rank that fails within a call ends those who wait for its rows; a plan that is bound anew
    runs.
    """
    others, group = group, _new_group(group)
    key = make_key(dense.masks(64)["full"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
    wanted = api.calc_attn(q, k, v, key)[0]
    begin = time.monotonic()
    if dist.get_rank(group) == who:
        communicator = api.dist_attn_runtime_dict_mgr.get(key).bound.communicator
        check(lib.magi_communicator_abort(communicator.address, b"a reason"))
    refuses(lambda: api.calc_attn(q, k, v, key), CommError, f"rank {who} aborted: a reason")
    assert time.monotonic() - begin < SOON
    group = _new_group(others)
    key = make_key(dense.masks(64)["full"], CASE, group)
    assert torch.equal(api.calc_attn(q, k, v, key)[0], wanted)
    api.clear_cache(group)


def later_abort_after_a_plan_of_one_rank(group, who: int) -> None:
    """A rank may bind plans for itself, to look at them: the ranks find each other all the same."""
    others, group = group, _new_group(group)
    key = make_key(dense.masks(64)["full"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
    plan = api.dist_attn_runtime_dict_mgr.get(key).bound.plan
    if dist.get_rank(group) == who:
        plan.bind(group)
    bound = plan.bind(group)
    bound.calc_attn(q, k, v)
    begin = time.monotonic()
    if dist.get_rank(group) == who:
        check(lib.magi_communicator_abort(bound.communicator.address, b"a reason"))
    refuses(lambda: bound.calc_attn(q, k, v), CommError, f"rank {who} aborted: a reason")
    assert time.monotonic() - begin < SOON
    dist.barrier(others)
    api.clear_cache(group)


def _new_group(group):
    timeout = datetime.timedelta(seconds=20)
    return dist.new_group(dist.get_process_group_ranks(group), timeout=timeout)


def later_difference(group, name: str, who_changes: str) -> None:
    """A CommError on all ranks, at once, where one changes what all had agreed on, or all do."""
    group = _new_group(group)
    odd, text = DIFFERENCES[name]
    for _ in range(2):
        _call(group, {})()
    rank = dist.get_rank(group)
    begin = time.monotonic()
    if who_changes == "all":
        given = {"softmax_scale": 0.25 + rank}
        wanted = "softmax_scale: rank 0 has 0.25, rank 1 has 1.25"
        refuses(lambda: _call(group, {})() and _changed(group, given), CommError, wanted)
    else:
        refuses(_call(group, odd), CommError, "ranks differ in .*" + text)
    assert time.monotonic() - begin < SOON
    api.clear_cache(group)


def _changed(group, given: dict):
    key = make_key(dense.masks(64)["causal"], CASE, group)
    q, k, v = (api.dispatch(t, key).float() for t in make_tensors(CASE)[:3])
    return api.calc_attn(q, k, v, key, **given)


def later_agreement(group) -> None:
    """All ranks change their options, one of them late: no rank takes that for a difference."""
    group = _new_group(group)
    rank = dist.get_rank(group)
    for number in range(6):
        if rank == number % 2:
            time.sleep(0.6)
        assert _changed(group, {"softcap": 1.0 + number // 2})[0].isfinite().all()
    api.clear_cache(group)


def compiled(group) -> None:
    """Operators compare as well."""
    odd = {"softmax_scale": 0.5} if dist.get_rank(group) == 0 else {}
    key = make_key(dense.masks(64)["causal"], CASE, group)
    q, k, v = (api.dispatch(t, key) for t in make_tensors(CASE)[:3])
    call = torch.compile(api.calc_attn, backend="aot_eager", fullgraph=True)
    refuses(lambda: call(q, k, v, key, **odd), CommError, "^ranks differ in softmax_scale")
    assert torch.equal(call(q, k, v, key)[0], api.calc_attn(q, k, v, key)[0])
    api.clear_cache(group)
