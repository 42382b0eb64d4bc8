# SPDX-License-Identifier: Apache-2.0
"""What attention over ranks does when: notes of its host, and what the cost model predicts."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from magi_attention._native.allocator import AttentionHandle
from magi_attention._native.handles import PlanHandle, rows_of_ints
from magi_attention._native.library import check, lib, told

PASS, STEP, AWAIT = 0, 1, 2


class Span(NamedTuple):
    """kind: PASS, STEP or AWAIT; call: number of the pass since the trace was started; step: place
    in the pass's list, -1 for all of it; ns of time.monotonic_ns.
    """

    kind: int
    is_backward: bool
    call: int
    step: int
    begin_ns: int
    end_ns: int


def start_traces() -> None:
    """All attention over ranks of this process takes notes, that of plans bound later too."""
    AttentionHandle.traced = list(AttentionHandle.alive)
    for handle in AttentionHandle.traced:
        check(lib.magi_attention_start_trace(handle.address))


def is_tracing() -> bool:
    """Between start_traces and stop_traces."""
    return AttentionHandle.traced is not None


def stop_traces() -> list[tuple[PlanHandle, int, list[Span]]]:
    """Plan, rank and notes of all attention that was called meanwhile."""
    handles, AttentionHandle.traced = AttentionHandle.traced or [], None
    found, rank = [], ctypes.c_int32()
    for handle in handles:
        notes = rows_of_ints(6, lib.magi_attention_stop_trace, handle.address, kind="q")
        spans = [Span(kind, bool(back), *rest) for kind, back, *rest in notes]
        if spans:
            given = handle.communicator.address, ctypes.addressof(rank)
            told(ctypes.c_int32, lib.magi_communicator_rank, *given)  # the number of ranks
            found.append((handle.plan, rank.value, spans))
    return found


def predicted_steps(plan: PlanHandle, rank: int, is_backward: bool) -> list[tuple[int, ...]]:
    """(begin, end) of each step of a pass in ns from its start, as the cost model has it."""
    arguments = plan.address, rank, is_backward
    return rows_of_ints(2, lib.magi_plan_predict_steps, *arguments, kind="q")
