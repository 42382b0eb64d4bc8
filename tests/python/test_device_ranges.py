# SPDX-License-Identifier: Apache-2.0
"""The copies of range tensors that backward reads, kept by identity; host tensors stand in."""

import torch

from magi_attention._native.attention import Options
from magi_attention._native.ranges import RangesCall
from magi_attention.api import flex_flash_attn_func
from magi_attention.functional._device_ranges import RangesInvocation, host_call
from magi_attention.functional._eager import run


def call_of(q_ranges, k_ranges, types=None):
    q, kv = torch.zeros(8, 4, 8), torch.zeros(8, 2, 8)
    return host_call(q, kv, kv, None, (q_ranges, k_ranges, types), Options())


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


def test_a_call_under_ranges_has_gradients(monkeypatch):
    def forward_under(call, q, k, v, sink, mask, is_checked):
        return host_call(q, k, v, sink, mask, Options()).forward(q, k, v, sink)

    monkeypatch.setattr(RangesCall, "forward_under", forward_under)
    leaves = [torch.randn(8, heads, 8, requires_grad=True) for heads in (4, 2, 2)]
    ranges = torch.tensor([[0, 6]], dtype=torch.int32)
    invocation = RangesInvocation(*leaves, None, (ranges, ranges, None), Options())
    results = run(*leaves, None, invocation, None), flex_flash_attn_func(*leaves, ranges, ranges)
    for (out, meta), (wanted, wanted_meta) in (results, results[::-1]):
        assert torch.equal(out, wanted) and torch.equal(meta.lse, wanted_meta.lse)
    found, expected = (torch.autograd.grad(out.sum(), leaves) for out, _ in results)
    assert all(torch.equal(f, e) for f, e in zip(found, expected))
