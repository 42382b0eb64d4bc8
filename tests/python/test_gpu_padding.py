# SPDX-License-Identifier: Apache-2.0
"""Rows before the padding alone on GPUs, a GPU for each rank."""

import pytest
import torch

import test_padding as cases
from on_gpu import NEEDS_GPU
from pipeline_cases import Case

pytestmark = NEEDS_GPU
SIZES = pytest.mark.parametrize("size", range(1, min(torch.cuda.device_count(), 8) + 1))


@SIZES
@pytest.mark.parametrize("rows", [383, 1023])
@pytest.mark.parametrize("sinks", [0, 2])
def test_rows_before_the_padding(gpu_ranks, size, rows, sinks):
    case = Case(rows=rows, heads=(4, 2), head_dim=64, dtype="bfloat16", sinks=sinks)
    gpu_ranks.run(size, cases.without_padding, case)
