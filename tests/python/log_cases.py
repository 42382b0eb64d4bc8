# SPDX-License-Identifier: Apache-2.0
"""What calls say where the environment asks for it, on every rank."""

from __future__ import annotations

import logging
import os

import torch

import dense
from magi_attention import api
from magi_attention.comm import group as groups
from magi_attention.errors import CommError
from pipeline_cases import Case, make_key, make_tensors


def attend(group, rows: int):
    case = Case(rows=rows, heads=(2, 2), head_dim=8)
    key = make_key(dense.masks(rows)["causal"], case, group)
    local = [api.dispatch(tensor, key).requires_grad_() for tensor in make_tensors(case)[:3]]
    out, _ = api.calc_attn(*local, key)
    out.sum().backward()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logged(group) -> None:
    """INFO tells of plans, DEBUG of new kinds of calls too, and the default of neither."""
    logger, kept = logging.getLogger("magi_attention"), Kept()
    logger.addHandler(kept)
    try:
        for level, rows, wanted in (("WARN", 40, 0), ("INFO", 41, 1), ("DEBUG", 42, 4)):
            os.environ["MAGI_ATTENTION_LOG_LEVEL"] = level
            kept.lines.clear()
            attend(group, rows)
            assert len(kept.lines) == wanted, kept.lines
            assert wanted != 1 or f"a plan of {rows} rows" in kept.lines[0]
            assert wanted < 4 or f": {rows} rows on " in kept.lines[0]  # the library's
            assert wanted < 4 or "calc_attn: q [" in kept.lines[3]
    finally:
        del os.environ["MAGI_ATTENTION_LOG_LEVEL"]
        logger.removeHandler(kept)
        logger.setLevel(logging.NOTSET)
    api.clear_cache(group)


class WithoutNvlink:
    """A communicator whose ranks cannot join nvlink."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def over_nvlink(self, device: int):
        raise CommError(f"rank 1 cannot join nvlink: {self.reason}", CommError.SYSTEM)


def carried(group) -> None:
    """The log tells once what carries a group's rows and why; rank 0 warns where nvlink failed."""
    logger, kept = logging.getLogger("magi_attention"), Kept()
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    try:
        for _ in range(2):
            groups.make_communicator(group, "process_group")
        assert len(kept.lines) == 1, kept.lines
        assert "carries rows between ranks, as transport is 'process_group'" in kept.lines[0]
        logger.setLevel(logging.WARNING)
        for reason, has_warning in (("rank 0 is on another host", False), ("no access", True)):
            kept.lines.clear()
            base = WithoutNvlink(reason)
            assert groups._over_nvlink(base, 0, "auto", group) is base
            wanted = has_warning and torch.distributed.get_rank(group) == 0
            assert len(kept.lines) == wanted, kept.lines
            assert not wanted or kept.lines[0].endswith("cannot join nvlink: no access")
    finally:
        logger.removeHandler(kept)
        logger.setLevel(logging.NOTSET)


def profiled(group) -> None:
    """PROFILE_MODE names forward and backward; without it there are no ranges."""
    names = {"magi_attention.calc_attn.forward", "magi_attention.calc_attn.backward"}
    for value, wanted in (("0", set()), ("1", names)):
        os.environ["MAGI_ATTENTION_PROFILE_MODE"] = value
        try:
            with torch.profiler.profile() as profile:
                attend(group, 50 + int(value))
        finally:
            del os.environ["MAGI_ATTENTION_PROFILE_MODE"]
        assert {event.name for event in profile.events()} & names == wanted
    api.clear_cache(group)
