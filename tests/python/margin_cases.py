# SPDX-License-Identifier: Apache-2.0
"""Multiprocessors that forward and backward leave to exchanges, on every rank."""

from __future__ import annotations

import os

import dense
from magi_attention import api, plan
from pipeline_cases import Case, check_attention, make_key, make_tensors

MARGINS = ("MAGI_ATTENTION_FFA_FORWARD_SM_MARGIN", "MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN")


def by_pass(group, forward: str, backward: str, wanted: list) -> None:
    """Each pass has the margin of its variable, and results are what they are without."""
    case, made = Case(rows=131), []
    kept = plan.AttentionHandle

    class Seen(kept):
        def __init__(self, handle, communicator, exchange_sms, *others):
            made.append(exchange_sms)
            super().__init__(handle, communicator, exchange_sms, *others)

    for name, value in zip(MARGINS, (forward, backward)):
        if value:
            os.environ[name] = value
    plan.AttentionHandle = Seen
    try:
        key = make_key(dense.masks(131)["causal"], case, group)
        check_attention("causal", key, dense.masks(131)["causal"], case, make_tensors(case))
    finally:
        plan.AttentionHandle = kept
        for name in MARGINS:
            os.environ.pop(name, None)
    assert made == wanted, made
    api.clear_cache(group)
