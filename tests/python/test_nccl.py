# SPDX-License-Identifier: Apache-2.0
"""What groups send over nccl, alone and beside gloo, one GPU per rank. The same cases run over gloo
on the CPU, where they need no GPU.
"""

import functools

import pytest
import torch

import nccl_cases as cases
from magi_attention.env.build import has_gpu_kernels
from ranks import Ranks

SIZE = 2


@pytest.fixture(scope="module", params=["gloo", "nccl", "cpu:gloo,cuda:nccl"])
def two_ranks(request):
    if "nccl" in request.param and (torch.cuda.device_count() < SIZE or not has_gpu_kernels()):
        pytest.skip(f"not run: it needs {SIZE} GPUs and a build with kernels for them")
    started = Ranks(SIZE, request.param)
    yield started
    started.stop()


@pytest.fixture
def run(two_ranks):
    return functools.partial(two_ranks.run, SIZE)


class TestExchanges(cases.Exchanges):
    def test_packed(self, run):
        run(cases.packed_batches)


@pytest.mark.parametrize("rows, work", [(512, None), (5000, None), (512, "heads")])
def test_a_captured_call_follows_new_data(two_ranks, rows, work):
    if not two_ranks.has_gpus:
        pytest.skip("not run: it needs GPUs")
    two_ranks.run(SIZE, cases.a_captured_call_follows_new_data, rows, work)
