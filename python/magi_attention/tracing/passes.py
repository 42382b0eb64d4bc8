# SPDX-License-Identifier: Apache-2.0
"""Forward and backward passes of a rank from the notes of its host, with words for their steps."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from magi_attention._native.handles import PlanHandle
from magi_attention._native.step_trace import AWAIT, PASS, STEP, Span, predicted_steps

_ROLES = ("k, v", "q", "out, lse", "dk, dv", "dq")  # of a plan's exchanges
_QUERIES, _FIRST_RETURNING = 1, 2


def passes_of(noted: list[tuple[PlanHandle, int, list[Span]]]) -> list[dict[str, Any]]:
    """Lists all attention of this process, by begin: plan (digest), pass, call, begin and end in
    ns, steps in the plan's order (name, kind, begin, end, predicted begin and end from the start of
    the pass) and waits (name, begin, end). A pass that did not end is left out.
    """
    found = []
    for plan, rank, spans in noted:
        calls = defaultdict(list)
        for span in spans:
            calls[span.call, span.is_backward].append(span)
        text = json.loads(plan.to_json())
        for notes in calls.values():
            whole = [span for span in notes if span.kind == PASS]
            if whole:
                found.append(_pass(plan, text, rank, whole[0], notes))
    return sorted(found, key=lambda one: one["begin"])


def _pass(plan: PlanHandle, text: dict, rank: int, whole: Span, notes: list[Span]) -> dict:
    is_backward = whole.is_backward
    listed = text["ranks"][rank]["backward" if is_backward else "forward"]
    names = [_name(text, rank, step, is_backward) for step in listed]
    predicted = predicted_steps(plan, rank, is_backward)

    def part(span: Span) -> dict:
        times = {"begin": span.begin_ns, "end": span.end_ns}
        return {"name": names[span.step], "step": span.step, **times}

    kinds = [("exchange", "attend")[step[0]] for step in listed]
    steps = [
        part(span) | {"kind": kinds[span.step], "predicted": predicted[span.step]}
        for span in notes
        if span.kind == STEP
    ]
    waits = [part(span) for span in notes if span.kind == AWAIT]
    name = "backward" if is_backward else "forward"
    return {
        "plan": text["digest"], "pass": name, "call": whole.call, "begin": whole.begin_ns,
        "end": whole.end_ns, "steps": steps, "waits": waits,
    }  # fmt: skip


def _name(text: dict, rank: int, step: list[int], is_backward: bool) -> str:
    """Names what a step is, as the picture of a plan's steps has it."""
    kind, index = step[:2]
    all_heads = text["config"]["num_heads_kv"]
    if kind == 0:
        role, segment, first, end = text["exchanges"][index][:4]
        what = "q, dout" if role == _QUERIES and is_backward else _ROLES[role]
        way = "of" if role >= _FIRST_RETURNING else "to"
        return f"{what} {way} segment {segment}{_heads(first, end, all_heads)}"
    q_segment, k_segment, first, end = text["ranks"][rank]["attends"][index][:4]
    places = [f"segment {s}" if s else "own" for s in (q_segment, k_segment)]
    return f"q {places[0]}, k {places[1]}{_heads(first, end, all_heads)}"


def _heads(first: int, end: int, count: int) -> str:
    if end - first == count:
        return ""
    return f", kv head {first}" if end - first == 1 else f", kv heads {first} to {end - 1}"
