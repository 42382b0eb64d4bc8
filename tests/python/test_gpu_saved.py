# SPDX-License-Identifier: Apache-2.0
"""As test_saved_tensors.py, on a GPU."""

import pytest
import torch

import dense
from magi_attention.functional import block_sparse_attn_func, flex_flash_attn_func
from on_gpu import FAMILIES, NEEDS_GPU, PLACES, ROWS, bound_plan, inputs, ranges_on
from test_saved_tensors import check

pytestmark = NEEDS_GPU
CLOSE = 2e-2  # of sums whose order is not fixed


def upstream():
    return torch.ones(ROWS, 8, 64, dtype=torch.bfloat16, device="cuda")


@PLACES
@FAMILIES
@pytest.mark.parametrize("has_sink", [False, True])
def test_of_ranges(place, has_sink):
    ranges = ranges_on(dense.masks(ROWS)["varlen_causal"], place)
    sink = [torch.zeros(1, 8, device="cuda", requires_grad=True)] if has_sink else []

    def call(q, k, v, sink=None):
        return flex_flash_attn_func(q, k, v, *ranges, sink=sink)

    check(call, inputs() + sink, upstream(), 5 + has_sink, CLOSE)


@pytest.mark.parametrize("is_fast", [False, True])
def test_of_blocks(is_fast):
    mask = torch.rand(2, -(-ROWS // 32), -(-ROWS // 64), device="cuda") < 0.5

    def call(q, k, v):
        return block_sparse_attn_func(
            q, k, v, mask, q_block_size=32, k_block_size=64, deterministic=not is_fast
        )

    check(call, inputs(), upstream(), 5, CLOSE)


def test_of_key_lists():
    lists = torch.randint(-1, ROWS, (ROWS, 2, 16), dtype=torch.int32, device="cuda")

    def call(q, k, v):
        return flex_flash_attn_func(q, k, v, index_sparse_indices=lists)

    check(call, inputs(), upstream(), 5, CLOSE)


def test_of_a_plan():
    _, bound = bound_plan()
    local = [bound.dispatch(t.detach()).requires_grad_() for t in inputs()]
    check(bound.calc_attn, local, torch.ones_like(local[0]), 5, CLOSE)
