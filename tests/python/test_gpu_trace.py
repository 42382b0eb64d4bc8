# SPDX-License-Identifier: Apache-2.0
"""Timelines with kernels, a GPU for each rank."""

import pytest
import torch

import test_trace as cases
from on_gpu import NEEDS_GPU
from test_trace import check_nesting, check_rank, spans_of

pytestmark = NEEDS_GPU


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU alone")
@pytest.mark.parametrize("degree", [None, 1])
def test_kernels_of_all_ranks(gpu_ranks, tmp_path, degree):
    size = torch.cuda.device_count()
    path = str(tmp_path / "step.json")
    plan, document = gpu_ranks.run(size, cases.attended, path, degree, False)[0]
    check_nesting(document)
    for rank in range(size):
        check_rank(document, plan, rank)
        kernels = spans_of(document, rank, ("kernel",))
        for name in ("forward", "backward"):
            of_pass = [k for k in kernels if k["args"].get("pass") == name]
            assert any(f"{name}_kernel" in kernel["name"] for kernel in of_pass)
