# SPDX-License-Identifier: Apache-2.0
"""Numbers of attention that are given as tensors: their value in each call counts."""

import functools

import pytest
import torch

from magi_attention import Plan, masks
from magi_attention.api import flex_flash_attn_func

ROWS = 6
RANGES = torch.tensor([[0, ROWS]], dtype=torch.int32)
LISTS = torch.arange(ROWS, dtype=torch.int32).expand(ROWS, 2, ROWS).contiguous()
BOUND = Plan.from_mask(
    masks.from_cu_seqlens([0, ROWS]), cp_size=1, num_heads_q=2, num_heads_kv=2, head_dim=8
).bind()

CALLS = {
    "ranges": functools.partial(flex_flash_attn_func, q_ranges=RANGES, k_ranges=RANGES),
    "lists": functools.partial(flex_flash_attn_func, index_sparse_indices=LISTS),
    "plan": BOUND.calc_attn,
}
pytestmark = [
    pytest.mark.parametrize("name", ["softmax_scale", "softcap"]),
    pytest.mark.parametrize("attend", CALLS.values(), ids=CALLS),
]


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(ROWS, 2, 8, generator=generator) for _ in range(3)]


def test_changed_in_place(attend, name):
    qkv, number = tensors(), torch.tensor(0.5)
    for value in (0.5, 1.5, 2.5):
        number.fill_(value)
        assert torch.equal(attend(*qkv, **{name: number})[0], attend(*qkv, **{name: value})[0])


def test_learned(attend, name):
    number = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(ValueError, match=f"{name} requires a gradient, .* none for it; allowed"):
        attend(*tensors(), **{name: number})
    with torch.no_grad():
        assert torch.equal(
            attend(*tensors(), **{name: number})[0], attend(*tensors(), **{name: 0.5})[0]
        )


def test_of_several(attend, name):
    with pytest.raises(TypeError, match=rf"{name} has shape \[2\]; allowed: a float"):
        attend(*tensors(), **{name: torch.ones(2)})
