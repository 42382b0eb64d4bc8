# SPDX-License-Identifier: Apache-2.0
"""The copies of range tensors that backward reads, kept by identity; host tensors stand in."""

import torch

from magi_attention._native.attention import Options
from magi_attention.functional._device_ranges import backward_call


def call_of(q_ranges, k_ranges, types=None):
    q, kv = torch.zeros(8, 4, 8), torch.zeros(8, 2, 8)
    return backward_call(q, kv, kv, None, (q_ranges, k_ranges, types), Options())


def test_unchanged_tensors_are_copied_once():
    ranges = torch.tensor([[0, 8]], dtype=torch.int32)
    first = call_of(ranges, ranges)
    assert call_of(ranges, ranges) is first
    assert call_of(ranges.clone(), ranges) is first  # equal contents: the same mask


def test_changed_tensors_are_copied_again():
    ranges = torch.tensor([[0, 8]], dtype=torch.int32)
    types = torch.zeros(1, dtype=torch.int32)
    first = call_of(ranges, ranges, types)
    ranges[0, 1] = 5
    second = call_of(ranges, ranges, types)
    types[0] = 1
    third = call_of(ranges, ranges, types)
    assert len({id(call) for call in (first, second, third)}) == 3
    ranges[0, 1] = 8
    types[0] = 0
    assert call_of(ranges, ranges, types) is first


def test_other_tensors_in_the_place_of_dead_ones():
    calls = set()
    for end in range(1, 9):
        ranges = torch.tensor([[0, end]], dtype=torch.int32)
        calls.add(id(call_of(ranges, ranges)))
        del ranges
    assert len(calls) == 8
