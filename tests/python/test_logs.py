# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os

import pytest
import torch

import dense
from magi_attention import api
from magi_attention._native.profile import named_range
from magi_attention.comm import group as groups
from magi_attention.errors import CommError
from pipeline_cases import Case, make_key, make_tensors
from ranks import launch, over


def attend(group, rows: int):
    case = Case(rows=rows, heads=(2, 2), head_dim=8)
    key = make_key(dense.masks(rows)["causal"], case, group)
    local = [api.dispatch(tensor, key).requires_grad_() for tensor in make_tensors(case)[:3]]
    out, _ = api.calc_attn(*local, key)
    out.sum().backward()


class Kept(logging.Handler):
    """What the logger is told inside."""

    def __enter__(self) -> Kept:
        self.lines: list[str] = []
        self.logger = logging.getLogger("magi_attention")
        self.logger.addHandler(self)
        return self

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __exit__(self, *error) -> None:
        self.logger.removeHandler(self)
        self.logger.setLevel(logging.NOTSET)


@over(1, 2)
def test_logged(group):
    """INFO tells of plans, DEBUG of new kinds of calls too, and the default of neither."""
    with Kept() as kept:
        for level, rows, wanted in (("WARN", 40, 0), ("INFO", 41, 1), ("DEBUG", 42, 4)):
            os.environ["MAGI_ATTENTION_LOG_LEVEL"] = level
            kept.lines.clear()
            attend(group, rows)
            assert len(kept.lines) == wanted, kept.lines
            assert wanted != 1 or f"a plan of {rows} rows" in kept.lines[0]
            assert wanted < 4 or f": {rows} rows on " in kept.lines[0]  # the library's
            assert wanted < 4 or "calc_attn: q [" in kept.lines[3]


class WithoutNvlink:
    """A communicator whose ranks cannot join nvlink."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def over_nvlink(self, device: int):
        raise CommError(f"rank 1 cannot join nvlink: {self.reason}", CommError.SYSTEM)


@over(2)
def test_the_log_tells_what_carries_rows(group):
    """The log tells once what carries a group's rows and why; rank 0 warns where nvlink failed."""
    with Kept() as kept:
        kept.logger.setLevel(logging.INFO)
        for _ in range(2):
            groups.make_communicator(group, "process_group")
        assert len(kept.lines) == 1, kept.lines
        assert "carries rows between ranks, as transport is 'process_group'" in kept.lines[0]
        kept.logger.setLevel(logging.WARNING)
        for reason, has_warning in (("rank 0 is on another host", False), ("no access", True)):
            kept.lines.clear()
            base = WithoutNvlink(reason)
            assert groups._over_nvlink(base, 0, "auto", group) is base
            wanted = has_warning and torch.distributed.get_rank(group) == 0
            assert len(kept.lines) == wanted, kept.lines
            assert not wanted or kept.lines[0].endswith("cannot join nvlink: no access")


@over(1, 2)
def test_profiled(group):
    """PROFILE_MODE names forward and backward; without it there are no ranges."""
    names = {"magi_attention.calc_attn.forward", "magi_attention.calc_attn.backward"}
    for value, wanted in (("0", set()), ("1", names)):
        os.environ["MAGI_ATTENTION_PROFILE_MODE"] = value
        with torch.profiler.profile() as profile:
            attend(group, 50 + int(value))
        assert {event.name for event in profile.events()} & names == wanted


_PROGRAM = """
import torch
from magi_attention import Plan, masks

plan = Plan.from_mask(
    masks.from_cu_seqlens([0, 30, 64]), cp_size=1, num_heads_q=2, num_heads_kv=1, head_dim=8
)
q, k, v = torch.randn(3, 64, 2, 8)
out, _ = plan.bind().calc_attn(q, k[:, :1], v[:, :1])
print(tuple(out.shape))
"""


@pytest.mark.parametrize("level, number", [(None, 0), ("warn", 0), ("debug", 1)])
def test_a_program_prints_the_lines_that_it_asks_for(level, number):
    name = "MAGI_ATTENTION_LOG_LEVEL"
    forget = f"import os; os.environ.pop({name!r}, None)" if level is None else ""
    code, output = launch(forget + _PROGRAM, **({name: level} if level else {}))
    *told, shape = output.splitlines()
    assert (code, shape) == (0, "(64, 2, 8)"), output
    assert output.count("DEBUG magi_attention.plan: made plan 0x") == number, output
    assert level == "debug" or not told


def test_ranges_are_those_of_nvtx_where_there_is_cuda(monkeypatch):
    told = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("end"))
    with pytest.raises(KeyError), named_range("outer"):
        raise KeyError
    assert told == ["outer", "end"]
