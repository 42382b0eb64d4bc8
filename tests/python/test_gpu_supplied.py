# SPDX-License-Identifier: Apache-2.0
"""An attention backend supplied from Python on a GPU: its work is in the order of the stream."""

import contextlib

import pytest
import torch

import backend_cases as cases
from on_gpu import NEEDS_GPU
from pipeline_cases import Case

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("is_default", [True, False])
def test_runs_behind_the_stream_of_the_call(is_default):
    stream = torch.cuda.Stream()
    with contextlib.nullcontext() if is_default else torch.cuda.stream(stream):
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):  # what the tensors are made behind
            busy = busy @ busy * 1e-3
        cases.runs_a_plan(None, Case(mask="varlen_causal"), device="cuda")
    torch.cuda.synchronize()
