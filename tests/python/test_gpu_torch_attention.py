# SPDX-License-Identifier: Apache-2.0
"""float32 and float64 on GPUs by KERNEL_BACKEND=sdpa, a GPU for each rank."""

import pytest
import torch

import test_torch_attention as cases
from on_gpu import NEEDS_GPU
from pipeline_cases import Case

pytestmark = NEEDS_GPU
SIZES = pytest.mark.parametrize("size", range(1, min(torch.cuda.device_count(), 8) + 1))


@SIZES
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("mask", ["varlen_causal", "block_causal_q_overlap"])
def test_types(gpu_ranks, size, mask, dtype):
    gpu_ranks.run(size, cases.by_torch, Case(mask=mask, rows=301, dtype=dtype), 20000)


@SIZES
def test_options(gpu_ranks, size):
    case = Case(rows=97, sinks=2, softcap=3.0, scale=0.3, with_lse_gradient=True, degree=0)
    gpu_ranks.run(size, cases.by_torch, case, 1 << 24)


def test_precision(gpu_ranks):
    gpu_ranks.run(1, cases.test_precision)
