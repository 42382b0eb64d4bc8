# SPDX-License-Identifier: Apache-2.0
"""What plans say of memory over nvlink, against sums by hand."""

from __future__ import annotations

import ctypes

import pytest
import torch

from magi_attention import api
from magi_attention._native.allocator import AttentionHandle
from magi_attention._native.library import check, lib
from magi_attention.common import AttnRanges
from magi_attention.plan import Plan
from magi_attention.plan_memory import memory_over_nvlink
from ranks import over

HEADS_Q, HEADS, DIM = 8, 2, 64
MIB = 1 << 20
ROWS = 8192  # of a rank
KEYS = 2 * 8 * 128 * 2  # bytes of a row of k and v, 8 heads of 128 in 16 bits
SUMS = 2 * 8 * 128 * 4  # and of their float32 gradients


def plan_of(q, k, types, ranks=2, degree=0, rows=ROWS, heads=(64, 8), **more) -> Plan:
    config = api.DistAttnConfig(overlap_config=api.OverlapConfig(degree=degree), **more)
    return Plan.from_ranges(
        AttnRanges.from_ranges(q), AttnRanges.from_ranges(k), types, rows * ranks, cp_size=ranks,
        num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=128, config=config,
    )  # fmt: skip


def full(ranks=2, **options) -> Plan:
    whole = [(0, options.get("rows", ROWS) * ranks)]
    return plan_of(whole, whole, "full", ranks, **options)


def window_of(forward: int, backward: int) -> int:
    """Two areas in steps of 4 MiB, the second pass behind the first."""

    def up(size):
        return -(-(size + MIB) // (4 * MIB)) * 4 * MIB

    area = up(forward)
    if backward + MIB > area:
        area = max(up(backward), up(area + area // 4 - MIB))
    return 2 * area


def test_one_stage():
    """Own keys lie in the segment too; rows of gradients come from the other rank alone."""
    memory = memory_over_nvlink(full())
    keys = 2 * ROWS * KEYS
    assert [m.window for m in memory] == [window_of(keys, keys + ROWS * SUMS)] * 2
    # The kernel writes gradients of the other's keys to the other; own ones are float32 sums, all
    # of them, as the other needs all.
    assert [(m.forward, m.backward) for m in memory] == [(0, ROWS * SUMS)] * 2
    assert memory[0].peak == memory[0].window + ROWS * SUMS


def test_a_stage_of_its_own_for_received_keys():
    memory = memory_over_nvlink(full(degree=1))
    assert memory[0].window == window_of(ROWS * KEYS, ROWS * (KEYS + SUMS))
    # out and dq are merged in float32; own and received gradients are float32.
    assert memory[0].forward == ROWS * 64 * 128 * 4
    assert memory[0].backward == ROWS * 64 * 128 * 4 + 2 * ROWS * SUMS


def test_ranks_that_need_nothing():
    """The first rank of a window keeps its keys where they are."""
    q = k = [(0, 2 * ROWS)]
    q, k, types = api.infer_attn_mask_from_sliding_window(
        AttnRanges.from_ranges(q)[0], AttnRanges.from_ranges(k)[0], (1024, 0)
    )
    config = api.DistAttnConfig(
        dispatch_config=api.DispatchConfig(chunk_size=ROWS // 8),
        overlap_config=api.OverlapConfig(degree=0),
    )
    plan = Plan.from_ranges(
        q, k, types, 2 * ROWS, cp_size=2, num_heads_q=64, num_heads_kv=8, head_dim=128,
        config=config,
    )  # fmt: skip
    assert sorted(plan.report.remote_rows) == [0, 1024]
    memory = memory_over_nvlink(plan)
    first = plan.report.remote_rows.index(0)
    assert memory[first].backward == ROWS * SUMS and memory[1 - first].backward == 0
    assert memory[0].window == window_of((ROWS + 1024) * KEYS, (ROWS + 1024) * KEYS + 1024 * SUMS)


def test_nothing_travels():
    """Documents of a rank each: no window, and the kernel writes all results."""
    bounds = [(0, ROWS), (ROWS, 2 * ROWS)]
    plan = plan_of(bounds, bounds, ["full", "full"])
    assert plan.report.total_bytes == 0
    assert [m.peak for m in memory_over_nvlink(plan)] == [0, 0]


def test_a_large_area_has_no_second_one():
    memory = memory_over_nvlink(full(ranks=4, rows=4 * ROWS))
    rows = 4 * ROWS
    assert memory[0].window == window_of(4 * rows * KEYS, 4 * rows * KEYS + 3 * rows * SUMS) // 2
    assert memory[0].window > 1 << 30


@pytest.mark.parametrize("work", ["queries", "heads"])
def test_other_plans_are_refused(work):
    whole = [(0, 2 * ROWS)]
    plan = plan_of(whole, whole, "causal", heads=(8, 8), work=work)
    with pytest.raises(ValueError, match="plan moves queries or heads; allowed: a plan whose keys"):
        memory_over_nvlink(plan)


@pytest.mark.parametrize("kind, keys", [("full", 2 * ROWS), ("causal", 2 * ROWS), ("full", ROWS)])
def test_stages_by_heads_are_sections_without_stages(kind, keys):
    q, k = [(0, 2 * ROWS)], [(0, keys)]
    bound = keys // 2 * (KEYS + SUMS) * 3 // 4
    plan = plan_of(q, k, kind, degree=3, max_exchange_bytes=bound)
    assert "stages_in_flight" in plan.to_json()
    section = plan_of(q, k, kind, heads=(16, 2))  # 3 stages of 8 heads are 4 sections
    assert memory_over_nvlink(plan) == memory_over_nvlink(section)


def test_large_sections_have_no_second_area():
    bound, rows = 4 * ROWS * (KEYS + SUMS) * 3 // 4, 4 * ROWS
    memory = memory_over_nvlink(full(rows=rows, degree=4, max_exchange_bytes=bound))
    keys = 2 * rows * KEYS
    assert memory[0].window == window_of(keys // 4, (keys + rows * SUMS) // 4) // 2
    assert memory[0].window > 64 << 20


def test_stages_by_rows_that_take_turns_need_no_window():
    bound = ROWS * (KEYS + SUMS) // 8 // 4
    for memory in memory_over_nvlink(full(heads=(8, 1), degree=8, max_exchange_bytes=bound)):
        assert memory.window == 0
        assert 0 < memory.backward <= 2 * bound
        assert memory.forward * (KEYS + SUMS) == memory.backward * KEYS


@over(4)
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_sums_are_those_that_the_executor_takes(group, degree):
    """In host memory, where received keys are the executor's too and kernels take little."""
    rows = 2048
    whole = AttnRanges.from_ranges([(0, rows)])
    config = api.DistAttnConfig(overlap_config=api.OverlapConfig(degree=degree))
    plan = Plan.from_ranges(
        whole, whole, "causal", rows, cp_size=group.size(), num_heads_q=HEADS_Q,
        num_heads_kv=HEADS, head_dim=DIM, config=config,
    )  # fmt: skip
    bound = plan.bind(group)
    generator = torch.Generator().manual_seed(bound.rank)
    q, k, v = (
        torch.randn(bound.local_rows, heads, DIM, generator=generator).bfloat16().requires_grad_()
        for heads in (HEADS_Q, HEADS, HEADS)
    )
    out = bound.calc_attn(q, k, v)[0]
    torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    sizes = []
    for handle in AttentionHandle.alive:
        if handle.plan is plan.handle:
            size = ctypes.c_size_t()
            check(lib.magi_attention_workspace_bytes(handle.address, ctypes.addressof(size)))
            sizes.append(size.value)
    keys = plan.report.remote_rows[bound.rank] * 2 * HEADS * DIM * 2
    told = keys + memory_over_nvlink(plan)[bound.rank].backward
    slack = 4096  # alignment of tensors, schedules of the host's kernels
    assert told <= max(sizes) <= told + slack
