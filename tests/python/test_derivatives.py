# SPDX-License-Identifier: Apache-2.0
"""Second derivatives, which this package has not."""

import pytest
import torch

import derivative_cases
from magi_attention.api import flex_flash_attn_func

ROWS = 6
RANGES = torch.tensor([[0, ROWS]], dtype=torch.int32)
LISTS = torch.arange(ROWS, dtype=torch.int32).expand(ROWS, 2, ROWS).contiguous()


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    "mask",
    [{"q_ranges": RANGES, "k_ranges": RANGES}, {"index_sparse_indices": LISTS}],
    ids=["ranges", "lists"],
)
def test_on_one_device(mask, is_watched):
    def attend(q, k, v):
        if not is_watched:
            return flex_flash_attn_func(q, k, v, **mask)[:1]
        with derivative_cases.Watching():
            return flex_flash_attn_func(q, k, v, **mask)[:1]

    leaves = [torch.randn(ROWS, 2, 8, requires_grad=True) for _ in range(3)]
    derivative_cases.refuses_second("attention", attend, *leaves)


@pytest.mark.parametrize("size", [1, 3])
def test_over_ranks(ranks, size):
    ranks.run(size, derivative_cases.second_derivatives)


@pytest.mark.parametrize("size", [1, 3])
def test_of_undispatch(ranks, size):
    ranks.run(size, derivative_cases.second_derivatives_of_undispatch)
