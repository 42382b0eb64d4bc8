# SPDX-License-Identifier: Apache-2.0
"""The pipeline over nccl, a GPU for each rank: the cases of test_pipeline.py in 16 bits, rows
before the padding alone, and float32 and float64 by KERNEL_BACKEND=sdpa.
"""

from dataclasses import replace

import pytest
import torch

import dense
import nccl_cases
import pipeline_cases as cases
import test_padding
import test_torch_attention
from on_gpu import NEEDS_GPU
from pipeline_cases import Case

pytestmark = NEEDS_GPU
GPUS = torch.cuda.device_count()
SIZES = pytest.mark.parametrize("size", range(1, min(GPUS, 8) + 1))
SEVERAL = pytest.mark.skipif(GPUS < 2, reason="one GPU alone")
BASE = Case(rows=600, head_dim=64, dtype="bfloat16")
DETERMINISTIC = {"MAGI_ATTENTION_DETERMINISTIC_MODE": "1"}
MMA = {"MAGI_ATTENTION_KERNEL_BACKEND": "mma"}


@SIZES
@pytest.mark.parametrize("mask", sorted(dense.masks(100)))
def test_masks(gpu_ranks, size, mask):
    gpu_ranks.run(size, cases.pipeline, replace(BASE, mask=mask))


@SEVERAL
@pytest.mark.parametrize("degree", [0, 1, 4, None])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
def test_degrees_and_heads(gpu_ranks, heads, degree):
    case = replace(BASE, mask="four_types", heads=heads, degree=degree, dtype="float16")
    gpu_ranks.run(GPUS, cases.pipeline, case)


@SIZES
@pytest.mark.parametrize("mask", ["four_types", "varlen_causal"])
def test_kernels_for_every_gpu(gpu_ranks, size, mask):
    case = replace(BASE, mask=mask, heads=(8, 2), sinks=1, degree=2)
    gpu_ranks.run(size, cases.environment, MMA, cases.pipeline, case)


UNEVEN = {"rows": 101, "uneven": True, "alg": "SequentialDispatchAlg"}


@SIZES
@pytest.mark.parametrize("change", [*cases.OPTIONS, UNEVEN], ids=str)
def test_options(gpu_ranks, size, change):
    gpu_ranks.run(size, cases.pipeline, replace(BASE, **change))


@SIZES
def test_shards(gpu_ranks, size):
    gpu_ranks.run(size, cases.shards, 65, False)
    gpu_ranks.run(size, cases.gradients_of_shards, 50)
    gpu_ranks.run(size, cases.functions_of_bound_plans, 50)


@SIZES
@pytest.mark.parametrize("case", [cases.same_bits, cases.checkpointing, cases.compiled])
def test_deterministic(gpu_ranks, size, case):
    gpu_ranks.run(size, cases.environment, DETERMINISTIC, case, replace(BASE, sinks=1))


@SEVERAL
def test_memory_is_torchs(gpu_ranks):
    gpu_ranks.run(GPUS, nccl_cases.memory_is_torchs, 4096)


@SEVERAL
def test_masks_that_change(gpu_ranks):
    gpu_ranks.run(GPUS, cases.hybrid, replace(BASE, rows=300))
    gpu_ranks.run(GPUS, cases.plan_mismatch)


@pytest.mark.parametrize("replicas", [2, 4])
def test_data_and_context_parallel(gpu_ranks, replicas):
    if GPUS % replicas or GPUS // replicas < 2:
        pytest.skip(f"not run: it needs a multiple of {replicas} GPUs, {2 * replicas} or more")
    gpu_ranks.run(GPUS, cases.meshes_and_two_groups, BASE, replicas)


@SIZES
@pytest.mark.parametrize("is_compiled", [False, True])
def test_plan_of_one_call(gpu_ranks, size, is_compiled):
    gpu_ranks.run(size, cases.plan_of_one_call, is_compiled)


@SIZES
@pytest.mark.parametrize("rows", [383, 1023])
@pytest.mark.parametrize("sinks", [0, 2])
def test_rows_before_the_padding(gpu_ranks, size, rows, sinks):
    case = Case(rows=rows, heads=(4, 2), head_dim=64, dtype="bfloat16", sinks=sinks)
    gpu_ranks.run(size, test_padding.without_padding, case)


@SIZES
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("mask", ["varlen_causal", "block_causal_q_overlap"])
def test_types_by_torch(gpu_ranks, size, mask, dtype):
    case = Case(mask=mask, rows=301, dtype=dtype)
    gpu_ranks.run(size, test_torch_attention.by_torch, case, 20000)


@SIZES
def test_options_by_torch(gpu_ranks, size):
    case = Case(rows=97, sinks=2, softcap=3.0, scale=0.3, with_lse_gradient=True, degree=0)
    gpu_ranks.run(size, test_torch_attention.by_torch, case, 1 << 24)


def test_precision_by_torch(gpu_ranks):
    gpu_ranks.run(1, test_torch_attention.test_precision)
