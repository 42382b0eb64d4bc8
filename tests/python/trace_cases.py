# SPDX-License-Identifier: Apache-2.0
"""Traces that every rank takes."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

import dense
import magi_attention
from magi_attention import api
from magi_attention.compat.keys.lookup import runtime_of
from pipeline_cases import Case, make_key, make_tensors
from ranks import refuses


def step(key, tensors) -> None:
    """One forward and backward."""
    local = [api.dispatch(tensor, key).requires_grad_() for tensor in tensors]
    out, _ = api.calc_attn(*local, key)
    out.sum().backward()


def attended(group, path: str, degree: int | None, is_bound_inside: bool) -> tuple[dict, dict]:
    """Traces one step; the plan's JSON and the trace."""
    rows = 128
    case = Case(rows=rows, heads=(4, 2), degree=degree)
    mask, (q, k, v, *_) = dense.masks(rows)["causal"], make_tensors(case)
    inputs = [t.to(torch.get_default_device()) for t in (q, k, v)]
    if torch.get_default_device().type == "cuda":
        inputs = [t.to(torch.bfloat16) for t in inputs]
    if not is_bound_inside:
        step(make_key(mask, case, group), inputs)
    with magi_attention.trace(path, group):
        key = make_key(mask, case, group)
        step(key, inputs)
    step(key, inputs)  # not in the file
    plan = json.loads(runtime_of(key).plan.to_json())
    api.clear_cache(group)
    dist.barrier(group)
    with open(path, encoding="utf-8") as file:
        return plan, json.load(file)


def refused(group, folder: str) -> None:
    """Nothing inside, a trace in a trace, and an error inside, which is left as it is."""
    path = f"{folder}/none.json"

    def empty():
        with magi_attention.trace(path, group):
            pass

    def nested():
        with magi_attention.trace(path, group):
            empty()

    def broken():
        with magi_attention.trace(path, group):
            raise KeyError("of the program")

    refuses(empty, ValueError, "nothing was traced")
    refuses(nested, RuntimeError, "a trace is being taken")
    refuses(broken, KeyError, "of the program")
    refuses(empty, ValueError, "nothing was traced")  # and no trace is left on
