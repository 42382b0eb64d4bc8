# SPDX-License-Identifier: Apache-2.0
"""What groups send over nccl, alone and beside gloo, one GPU per rank. The same cases run over gloo
on the CPU, where they need no GPU.
"""

import pytest
import torch

import nccl_cases as cases
import pipeline_cases
import test_group_collectives as group_cases
from magi_attention.env.build import has_gpu_kernels
from pipeline_cases import Case
from ranks import Ranks

SIZE = 2


@pytest.fixture(scope="module", params=["gloo", "nccl", "cpu:gloo,cuda:nccl"])
def two_ranks(request):
    if "nccl" in request.param and (torch.cuda.device_count() < SIZE or not has_gpu_kernels()):
        pytest.skip(f"not run: it needs {SIZE} GPUs and a build with kernels for them")
    started = Ranks(SIZE, request.param)
    yield started
    started.stop()


@pytest.mark.parametrize("degree", [0, 1, 4, None])
def test_attention(two_ranks, degree):
    case = Case(mask="four_types", rows=300, head_dim=64, degree=degree, dtype="bfloat16")
    two_ranks.run(SIZE, pipeline_cases.pipeline, case)


def test_one_kv_head_in_stages_by_rows(two_ranks):
    case = Case(mask="full", rows=300, heads=(4, 1), head_dim=128, degree=4, dtype="float16")
    two_ranks.run(SIZE, pipeline_cases.pipeline, case)


def test_bytes_are_the_plans(two_ranks):
    two_ranks.run(SIZE, cases.bytes_are_the_plans, 512)


def test_packed(two_ranks):
    two_ranks.run(SIZE, cases.packed_batches)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "case", [group_cases.casts, group_cases.reduces, group_cases.reduces_softmax_results]
)
def test_group_collectives(two_ranks, case, seed):
    two_ranks.run(SIZE, case, seed)


@pytest.mark.parametrize("rows, work", [(512, None), (5000, None), (512, "heads")])
def test_a_captured_call_follows_new_data(two_ranks, rows, work):
    if not two_ranks.has_gpus:
        pytest.skip("not run: it needs GPUs")
    two_ranks.run(SIZE, cases.a_captured_call_follows_new_data, rows, work)
