# SPDX-License-Identifier: Apache-2.0
"""Backwards of tensors that are not what forward saved."""

import pytest
import torch

import saved_cases
from derivative_cases import Watching
from magi_attention._native import attention
from magi_attention.api import flex_flash_attn_func

ROWS = 6
RANGES = torch.tensor([[0, ROWS]], dtype=torch.int32)
LISTS = torch.arange(ROWS, dtype=torch.int32).expand(ROWS, 2, ROWS).contiguous()


def leaves(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(ROWS, heads, 8, generator=generator) for heads in (4, 2, 2))
    return [t.to(dtype).requires_grad_() for t in made]


def watched(*given, **options):
    with Watching():
        return flex_flash_attn_func(*given, **options)


@pytest.mark.parametrize("has_views", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_ranges(monkeypatch, dtype, has_views):
    """has_views: whether torch is new enough to tell forms of tensors to the module of calls."""
    monkeypatch.setattr(attention, "_HAS_VIEWS", attention._HAS_VIEWS and has_views)
    given, upstream = leaves(dtype), torch.ones(ROWS, 4, 8, dtype=dtype)

    def call(q, k, v, sink=None):
        return flex_flash_attn_func(q, k, v, RANGES, RANGES, sink=sink)

    saved_cases.check(call, given, upstream, 5)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    saved_cases.check(
        call, [*given, torch.zeros(1, 4, dtype=wide, requires_grad=True)], upstream, 6
    )


@pytest.mark.parametrize("function", [flex_flash_attn_func, watched])
@pytest.mark.parametrize("mask", [(RANGES, RANGES), LISTS], ids=["ranges", "lists"])
def test_of_operators(mask, function):
    def call(*qkv):
        if isinstance(mask, tuple):
            return function(*qkv, *mask)
        return function(*qkv, index_sparse_indices=mask)

    saved_cases.check(call, leaves(), torch.ones(ROWS, 4, 8), 5)


def test_data_that_is_replaced():
    """As packages that shard weights do between forward and backward."""
    given = leaves()
    out, _ = flex_flash_attn_func(*given, RANGES, RANGES)
    given[1].data = given[1].data[:3].clone()
    with pytest.raises(ValueError, match=r"^k has shape \[3, 2, 8\], .* in backward; allowed: sha"):
        out.sum().backward()


@pytest.mark.parametrize("size", [1, 2])
def test_over_ranks(ranks, size):
    ranks.run(size, saved_cases.over_ranks)
