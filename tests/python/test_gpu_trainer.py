# SPDX-License-Identifier: Apache-2.0
"""Training with Trainer on GPUs over nccl, a GPU for each rank, where accelerate is installed."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import trainer_cases as cases
from on_gpu import NEEDS_GPU

pytestmark = NEEDS_GPU
GPUS = torch.cuda.device_count()
SETTINGS = [{}, {"gradient_checkpointing": True}, {"fsdp": True, "fsdp_config": {"version": 2}}]
FIRST_FSDP = {"fsdp": True, "fsdp_config": {"version": 1, "use_orig_params": True}}


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_float64(gpu_ranks, options):
    gpu_ranks.run(GPUS, cases.by_torch, cases.trainer, GPUS, "llama", options)


@pytest.mark.parametrize("options", [SETTINGS[0], SETTINGS[-1]], ids=str)
def test_resumed(gpu_ranks, tmp_path, options):
    gpu_ranks.run(GPUS, cases.by_torch, cases.resumed, str(tmp_path), options)


# The first FSDP takes norms of gradients in float32, which float64 cannot be narrowed to.
@pytest.mark.parametrize("options", [*SETTINGS, FIRST_FSDP], ids=str)
def test_kernels(gpu_ranks, options):
    gpu_ranks.run(GPUS, cases.by_kernels, GPUS, "llama", {**options, "bf16": True})


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "qwen3"])
def test_models(gpu_ranks, name):
    gpu_ranks.run(GPUS, cases.by_kernels, GPUS, name, {"bf16": True})


def test_replicas(gpu_ranks):
    """Each GPU a sequence of its own."""
    gpu_ranks.run(GPUS, cases.by_kernels, 1, "llama", {"bf16": True})
