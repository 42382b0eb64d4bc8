# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest
import torch

import log_cases as cases
from magi_attention._native.profile import named_range


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("case", [cases.logged, cases.profiled])
def test_calls_say_what_is_asked_for(ranks, size, case):
    ranks.run(size, case)


def test_the_log_tells_what_carries_rows(ranks):
    ranks.run(2, cases.carried)


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
    environment = {k: v for k, v in os.environ.items() if not k.endswith("LOG_LEVEL")}
    if level is not None:
        environment["MAGI_ATTENTION_LOG_LEVEL"] = level
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "(64, 2, 8)\n"), done.stderr
    assert done.stderr.count("DEBUG magi_attention.plan: made plan 0x") == number, done.stderr
    assert level == "debug" or done.stderr == ""


def test_ranges_are_those_of_nvtx_where_there_is_cuda(monkeypatch):
    told = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("end"))
    with pytest.raises(KeyError), named_range("outer"):
        raise KeyError
    assert told == ["outer", "end"]
