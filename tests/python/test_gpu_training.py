# SPDX-License-Identifier: Apache-2.0
"""As test_training.py, on a GPU: copies on a stream of their own, and what they save."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import test_long_context_examples as recipes
import test_training
from magi_attention import attention, masks
from magi_attention.training import Offload, save_attention
from on_gpu import NEEDS_GPU
from test_training import Counts

pytestmark = NEEDS_GPU
ROWS, HEADS, DIM, LAYERS = 4096, 8, 64, 6
GPUS = torch.cuda.device_count()
MASK = masks.from_cu_seqlens([0, 1000, ROWS])


def layer(x):
    """Attention with much beside it that is recomputed."""
    q = x
    for _ in range(4):
        q = (q * 1.01).sin()
    return x + attention(q, q.cos(), x, MASK)


def run(context_fn, x):
    """The gradient of x, and the most memory that the forward left and that all took."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    y = x
    for _ in range(LAYERS):
        y = checkpoint(layer, y, use_reentrant=False, context_fn=context_fn)
    left = torch.cuda.memory_allocated()
    (gradient,) = torch.autograd.grad(y.float().square().mean(), x)
    return gradient, left, torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("keeps", [False, True])
def test_offloaded(layers, keeps):
    """The same bits every time, from less memory; the forward leaves that of the last layers."""
    x = torch.randn(ROWS, HEADS, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    wanted, before, _ = run(save_attention, x)
    host = Offload(layers=layers)
    for _ in range(3):
        with host, Counts() as counted:
            found, left, _ = run(host.save_attention if keeps else host.recompute, x)
        scale = wanted.float().abs().max()
        assert (found.float() - wanted.float()).abs().max() <= 2e-2 * scale
        assert counted.found[0] == LAYERS * (1 if keeps else 2)
        # A layer's input and out are as large as x.
        assert before - left >= (LAYERS - layers - 1) * x.nbytes * (2 if keeps else 1)


def test_offloaded_while_the_host_is_ahead():
    """What is let go of is not overwritten before it is copied."""
    host, x = Offload(), torch.randn(1 << 24, device="cuda", requires_grad=True)

    def scaled(y, number):
        return (y * (1 + number / 16)).sin()

    def gradient(context_fn):
        y = x
        for number in range(LAYERS):
            y = checkpoint(scaled, y, number, use_reentrant=False, context_fn=context_fn)
        return torch.autograd.grad(y.sum(), x)[0]

    wanted = gradient(Offload().recompute)
    for _ in range(3):
        torch.cuda._sleep(100_000_000)
        with host:
            found = gradient(host.recompute)
        assert torch.equal(found, wanted)


def test_recipe_for_pytorch(gpu_ranks):
    pytest.importorskip("transformers", minversion="5")
    alone, shared = (gpu_ranks.run(size, recipes.by_pytorch)[0] for size in (1, GPUS))
    recipes.check(alone, shared, allowed=2e-2)


def test_recipe_for_megatron(gpu_ranks):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    alone, shared = (gpu_ranks.run(GPUS, recipes.by_megatron, size)[0] for size in (1, GPUS))
    recipes.check(alone, shared, allowed=2e-2)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_over_ranks(gpu_ranks, groups):
    size = min(torch.cuda.device_count(), 2)
    gpu_ranks.run(size, groups_in_bfloat16, groups)


def groups_in_bfloat16(group, groups: int) -> None:
    test_training.check_groups(group, groups, torch.bfloat16, 3e-2)
