# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import runtime_cases as cases
from magi_attention.functional.utils import correct_attn_out_lse, correct_out_lse_kernel

SIZES = pytest.mark.parametrize("size", [1, 3])


@SIZES
def test_managers(ranks, size):
    ranks.run(size, cases.managers, 70)


@SIZES
def test_keys_by_hand(ranks, size):
    ranks.run(size, cases.keys_by_hand)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("rows", [70, 383])
def test_managers_of_fields(ranks, size, rows):
    ranks.run(size, cases.managers_of_fields, rows)


@SIZES
def test_cross_attention(ranks, size):
    ranks.run(size, cases.cross_attention, 47)


def test_merging_in_place():
    generator = torch.Generator().manual_seed(0)
    out, part = torch.randn(2, 9, 3, 4, generator=generator)
    lse, part_lse = torch.randn(2, 9, 3, generator=generator)
    lse[2] = -torch.inf
    wanted = correct_attn_out_lse(out[:7], lse[:7], part[:7], part_lse[:7])
    tail = out[7:].clone()
    strides = (*out.stride(), *part.stride(), *lse.stride(), *part_lse.stride())
    correct_out_lse_kernel[(1, 3)](part, part_lse, out, lse, *strides, 7, 64, 4, torch.float32)
    assert torch.allclose(out[:7], wanted[0]) and torch.allclose(lse[:7], wanted[1])
    assert torch.equal(out[7:], tail)
    with pytest.raises(ValueError, match="output strides are"):
        correct_out_lse_kernel(part, part_lse, out, lse, 1, *strides[1:], 7, 64, 4)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_as_the_original_is_called(ranks, size):
    ranks.run(size, cases.as_the_original_is_called)
