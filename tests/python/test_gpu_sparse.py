# SPDX-License-Identifier: Apache-2.0
"""Sparse attention on a GPU: masks and lists of blocks that are made there, by ranges."""

import random

import pytest
import torch

from magi_attention.api import flex_flash_attn_func
from magi_attention.functional import block_sparse_attn_func
from on_gpu import NEEDS_GPU, ROWS, inputs, no_waits
from sparse_masks import check, random_case

pytestmark = NEEDS_GPU
SIZES = {"q_block_size": 32, "k_block_size": 64}
NUM_Q, NUM_K = -(-ROWS // 32), -(-ROWS // 64)


def random_mask(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(2, NUM_Q, NUM_K, generator=generator) < 0.5).cuda()


@pytest.mark.parametrize("part", range(10))
def test_random_cases(part):
    """100 of the cases of sparse_masks.py that run on a GPU."""
    for seed in range(10 * part, 10 * (part + 1)):
        generator = random.Random(seed)
        case = random_case(generator, on_gpu=True)
        try:
            check(case, generator, "cuda")
        except Exception as error:
            raise AssertionError(f"seed {seed}: {case.name}") from error


def test_forward_waits_for_nothing():
    q, k, v = (t.detach() for t in inputs())
    masks = [random_mask(seed) for seed in range(3)]
    wanted = [block_sparse_attn_func(q, k, v, mask, **SIZES)[0] for mask in masks]
    torch.cuda.synchronize()
    with no_waits():
        found = [block_sparse_attn_func(q, k, v, mask, **SIZES) for mask in masks]
    for (out, meta), expected in zip(found, wanted):
        assert torch.equal(out, expected) and meta.error_word.tolist() == [0, -1]


def test_a_captured_forward_follows_the_mask():
    q, k, v = (t.detach() for t in inputs())
    mask = random_mask()
    block_sparse_attn_func(q, k, v, mask, **SIZES)  # makes what is made once
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = block_sparse_attn_func(q, k, v, mask, **SIZES)
    for seed in range(4):
        mask.copy_(random_mask(seed))
        graph.replay()
        wanted, _ = block_sparse_attn_func(q, k, v, mask, **SIZES)
        assert torch.equal(out, wanted)


def test_room_for_too_few_runs_is_never_a_wrong_result():
    q, k, v = (t.detach() for t in inputs())
    mask = torch.zeros(2, NUM_Q, NUM_K, dtype=torch.bool, device="cuda")
    mask[:, :, 1] = True
    out, meta = block_sparse_attn_func(q, k, v, mask, max_runs=2 * NUM_Q, **SIZES)
    assert out.isfinite().all() and meta.error_word.tolist() == [0, -1]
    out, meta = block_sparse_attn_func(q, k, v, mask, max_runs=2 * NUM_Q - 3, **SIZES)
    assert out.isnan().all() and meta.lse.isnan().all()
    assert meta.error_word.tolist() == [3, -1]


def test_lists_of_single_queries_are_refused():
    q, k, v = inputs()
    lists = torch.zeros(ROWS, 2, 3, dtype=torch.int32, device="cuda")
    with pytest.raises(
        NotImplementedError, match="index_sparse_indices is on cuda:0; allowed: cpu"
    ):
        flex_flash_attn_func(q, k, v, index_sparse_indices=lists)
