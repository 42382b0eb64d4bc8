# SPDX-License-Identifier: Apache-2.0
"""Which model of transformers is being called with which plan, for code that models call without
handing the plan on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from magi_attention.integrations._bound import PLANS, AnyPlan, bound_of

PLAN_KEYWORD = "magi_plan"
_CALL_OF_MODULE = torch.nn.Module.__call__.__code__


def _calls() -> list[tuple[torch.nn.Module, dict[str, Any]]]:
    """The modules whose calls are under way, from the inside out, and keywords of these calls."""
    found, frame = [], sys._getframe(1)  # no generator, which compilers would look into
    while frame is not None:
        if frame.f_code is _CALL_OF_MODULE:
            found.append((frame.f_locals["self"], frame.f_locals["kwargs"]))
        frame = frame.f_back
    return found


def calling_model() -> tuple[torch.nn.Module, AnyPlan, dict[str, Any], torch.nn.Module] | None:
    """The outermost model among the modules whose calls are under way with a plan, its plan (of
    several the first), the keywords of its call, and what wraps it.
    """
    found, outermost = None, None
    for model, keywords in _calls():
        plan = keywords.get(PLAN_KEYWORD)
        of_layers = [*plan.values()] if isinstance(plan, Mapping) else [plan]
        plan = next((one for one in of_layers if isinstance(one, PLANS)), None)
        if plan is not None:
            model = outermost = getattr(model, "_orig_mod", model)  # of torch.compile
            if found is None or isinstance(model, PreTrainedModel):
                found = model, plan, keywords
    return None if found is None else (*found, outermost)


@torch.compiler.assume_constant_result
def plan_of_callers() -> tuple[str, int] | None:
    """Returns that model by the name of its class, and the local rows of its plan. A compiler looks
    at the calls it compiles in.
    """
    found = calling_model()
    return None if found is None else (type(found[0]).__name__, bound_of(found[1]).local_rows)


@torch.compiler.assume_constant_result
def is_plan_in_force() -> bool:
    """Whether plan_in_force finds one."""
    return plan_in_force() is not None


def plan_in_force() -> Any:
    """The plan, or the plans by type of layer, of the innermost call that was given one."""
    frame = sys._getframe(1)
    while frame is not None:
        if "kwargs" in frame.f_code.co_varnames:  # of calls, and of forwards that are recomputed
            keywords = frame.f_locals.get("kwargs")
            plan = keywords.get(PLAN_KEYWORD) if isinstance(keywords, dict) else None
            if isinstance(plan, (*PLANS, Mapping)):  # else a compiler's stand-in for it
                return plan
        frame = frame.f_back
    return None


@torch.compiler.assume_constant_result
def have_callers_a_plan() -> bool:
    """Whether a module whose call is under way was given one, or what makes one."""
    given = [keywords.get(PLAN_KEYWORD) for _, keywords in _calls()]
    return given.count(None) < len(given)


def rows_of_batch(x: torch.Tensor) -> torch.Tensor:
    """[1, rows, ...] -> [rows, ...]; ValueError for a batch, which a plan has packed."""
    if x.shape[0] != 1:
        raise ValueError(
            f"the batch is {x.shape[0]} sequences; allowed: 1 with {PLAN_KEYWORD}, which packs "
            "sequences one after the other"
        )
    return x[0]
