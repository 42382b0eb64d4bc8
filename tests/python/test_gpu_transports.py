# SPDX-License-Identifier: Apache-2.0
"""The transports that call NCCL themselves, or write into the memory of other GPUs: one process and
one GPU for each rank.
"""

import contextlib
import dataclasses
import functools
import os
from unittest import mock

import pytest
import torch

import nccl_cases as cases
import pipeline_cases
from magi_attention.env.build import has_gpu_kernels
from pipeline_cases import Case
from ranks import Ranks

VARIABLE = "MAGI_ATTENTION_TRANSPORT"


@contextlib.contextmanager
def started_ranks(size: int, backend: str, transport: str):
    """Ranks whose processes are told the transport by the environment."""
    if torch.cuda.device_count() < size or not has_gpu_kernels():
        pytest.skip(f"not run: it needs {size} GPUs and a build with kernels for them")
    started = Ranks(size, backend)
    try:
        with mock.patch.dict(os.environ, {VARIABLE: transport}):
            yield started
    finally:
        started.stop()


KINDS = [
    (2, "nccl", "nccl"), (2, "cpu:gloo,cuda:nccl", "nccl"), (4, "nccl", "nccl"),
    (2, "nccl", "nvlink"), (4, "nccl", "nvlink"), (8, "nccl", "nccl"), (8, "nccl", "nvlink"),
]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def run(kind):
    """Calls a function on all ranks of a kind."""
    with started_ranks(*kind) as started:
        yield functools.partial(started.run, kind[0])


class TestExchanges(cases.Exchanges):
    pass


WITH_SINKS = {"sinks": 2, "softcap": 4.0, "with_lse_gradient": True}


@pytest.mark.parametrize("mask", ["varlen_causal", "four_types"])
@pytest.mark.parametrize("work, change", [
    ("queries", {}), ("queries", {"degree": 0}), ("queries", {"degree": 4}),
    ("queries", {"work": "auto", "degree": None}),
    ("queries", {"layout": "contiguous", "degree": 2}), ("queries", WITH_SINKS),
    ("queries", {"heads": (8, 2), "head_dim": 128}),
    ("heads", {}), ("heads", {"degree": 0}), ("heads", {"degree": 2}),
    ("heads", {"head_shares": 2, "degree": None}), ("heads", {"rows": 601, "uneven": True}),
    ("heads", {"heads": (16, 4), "head_dim": 128}), ("heads", WITH_SINKS),
], ids=str)  # fmt: skip
def test_what_travels(run, mask, work, change):
    case = Case(mask=mask, rows=600, heads=(8, 8), head_dim=64, work=work, dtype="bfloat16")
    run(pipeline_cases.pipeline, dataclasses.replace(case, **change))


@pytest.mark.parametrize("heads", [(8, 8), (8, 1)])
def test_stages_in_turns(run, heads):
    bound = 600 * heads[1] * 2 * 64 * (2 + 4) // 3
    case = Case(mask="full", rows=600, heads=heads, head_dim=64, degree=None, dtype="bfloat16",
                max_exchange_bytes=bound)  # fmt: skip
    run(pipeline_cases.stages_in_turns, case)


def test_windows_are_as_large_as_plans_say(run, kind):
    if kind[2] != "nvlink":
        pytest.skip("not run: NCCL has no windows")
    run(cases.window_is_reported, 65536)


def test_choice_by_argument(run):
    run(cases.is_carried_by, "nccl", "nccl")
    run(cases.is_carried_by, "process_group", "process_group")


def test_captured_attention_is_replayed(run):
    run(cases.captured_attention_is_replayed, 512)


def test_aborted_group_is_made_anew(run, kind):
    run(cases.aborted_group_is_made_anew, 512, kind[2])


@pytest.mark.parametrize("transport", ["nccl", "nvlink"])
def test_killed_rank_is_named(transport):
    with started_ranks(2, "cpu:gloo,cuda:nccl", transport) as ranks:
        with pytest.raises(AssertionError) as caught:
            ranks.run(2, cases.killed_rank_is_named, 512, transport)
        assert str(caught.value) == "rank 1 ended"
