# SPDX-License-Identifier: Apache-2.0
"""The transports that call NCCL themselves, or write into the memory of other GPUs: one process and
one GPU for each rank.
"""

import contextlib
import dataclasses
import os
from unittest import mock

import pytest
import torch

import nccl_cases as cases
import pipeline_cases
import test_group_collectives as group_cases
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
    (2, "nccl", "nccl"),
    (2, "cpu:gloo,cuda:nccl", "nccl"),
    (4, "nccl", "nccl"),
    (2, "nccl", "nvlink"),
    (4, "nccl", "nvlink"),
    (8, "nccl", "nccl"),
    (8, "nccl", "nvlink"),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def some_ranks(kind):
    with started_ranks(*kind) as started:
        yield started, kind[0]


@pytest.mark.parametrize("degree", [0, 1, 4, None])
def test_attention(some_ranks, degree):
    ranks, size = some_ranks
    case = Case(mask="four_types", rows=300, head_dim=64, degree=degree, dtype="bfloat16")
    ranks.run(size, pipeline_cases.pipeline, case)


@pytest.mark.parametrize("mask", ["varlen_causal", "four_types"])
@pytest.mark.parametrize("change", [
    {}, {"degree": 0}, {"degree": 4}, {"work": "auto", "degree": None},
    {"layout": "contiguous", "degree": 2}, {"sinks": 2, "softcap": 4.0, "with_lse_gradient": True},
    {"heads": (8, 2), "head_dim": 128},
], ids=str)  # fmt: skip
def test_moving_queries(some_ranks, mask, change):
    ranks, size = some_ranks
    case = Case(mask=mask, rows=600, heads=(8, 8), head_dim=64, work="queries", dtype="bfloat16")
    ranks.run(size, pipeline_cases.pipeline, dataclasses.replace(case, **change))


@pytest.mark.parametrize("mask", ["varlen_causal", "four_types"])
@pytest.mark.parametrize("change", [
    {}, {"degree": 0}, {"degree": 2}, {"head_shares": 2, "degree": None},
    {"rows": 601, "uneven": True}, {"heads": (16, 4), "head_dim": 128},
    {"sinks": 2, "softcap": 4.0, "with_lse_gradient": True},
], ids=str)  # fmt: skip
def test_shared_heads(some_ranks, mask, change):
    ranks, size = some_ranks
    case = Case(mask=mask, rows=600, heads=(8, 8), head_dim=64, work="heads", dtype="bfloat16")
    ranks.run(size, pipeline_cases.pipeline, dataclasses.replace(case, **change))


@pytest.mark.parametrize("heads", [(8, 8), (8, 1)])
def test_stages_in_turns(some_ranks, heads):
    ranks, size = some_ranks
    bound = 600 * heads[1] * 2 * 64 * (2 + 4) // 3
    case = Case(mask="full", rows=600, heads=heads, head_dim=64, degree=None, dtype="bfloat16",
                max_exchange_bytes=bound)  # fmt: skip
    ranks.run(size, pipeline_cases.stages_in_turns, case)


def test_one_kv_head_in_stages_by_rows(some_ranks):
    ranks, size = some_ranks
    case = Case(mask="full", rows=300, heads=(4, 1), head_dim=128, degree=4, dtype="float16")
    ranks.run(size, pipeline_cases.pipeline, case)


def test_bytes_are_the_plans(some_ranks):
    ranks, size = some_ranks
    ranks.run(size, cases.bytes_are_the_plans, 512)


def test_windows_are_as_large_as_plans_say(some_ranks, kind):
    if kind[2] != "nvlink":
        pytest.skip("not run: NCCL has no windows")
    ranks, size = some_ranks
    ranks.run(size, cases.window_is_reported, 65536)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "case", [group_cases.casts, group_cases.reduces, group_cases.reduces_softmax_results]
)
def test_group_collectives(some_ranks, case, seed):
    ranks, size = some_ranks
    ranks.run(size, case, seed)


def test_choice_by_argument(some_ranks):
    ranks, size = some_ranks
    ranks.run(size, cases.is_carried_by, "nccl", "nccl")
    ranks.run(size, cases.is_carried_by, "process_group", "process_group")


def test_captured_attention_is_replayed(some_ranks):
    ranks, size = some_ranks
    ranks.run(size, cases.captured_attention_is_replayed, 512)


def test_aborted_group_is_made_anew(some_ranks, kind):
    ranks, size = some_ranks
    ranks.run(size, cases.aborted_group_is_made_anew, 512, kind[2])


@pytest.mark.parametrize("transport", ["nccl", "nvlink"])
def test_killed_rank_is_named(transport):
    with started_ranks(2, "cpu:gloo,cuda:nccl", transport) as ranks:
        with pytest.raises(AssertionError) as caught:
            ranks.run(2, cases.killed_rank_is_named, 512, transport)
        assert str(caught.value) == "rank 1 ended"
