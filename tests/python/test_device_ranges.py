# SPDX-License-Identifier: Apache-2.0
"""Calls under range tensors in device memory, and the copies of them that other backends read, kept
by identity; host tensors stand in."""

import pytest
import torch

from magi_attention._native.attention import Options
from magi_attention._native.masked import RangesCall
from magi_attention.api import flex_flash_attn_func
from magi_attention.functional._calls import run
from magi_attention.functional._slices import RangesInvocation, host_call, mask_of


def call_of(q_ranges, k_ranges, types=None):
    q, kv = torch.zeros(8, 4, 8), torch.zeros(8, 2, 8)
    return host_call(q, kv, kv, None, (q_ranges, k_ranges, types), Options(), "cpu")


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


def test_tensors_of_inference_mode_are_copied_in_every_call():
    """They count no changes."""
    with torch.inference_mode():
        ranges = torch.tensor([[0, 8]], dtype=torch.int32)
        first = call_of(ranges, ranges)
        assert call_of(ranges, ranges) is first  # equal contents: the same mask
        ranges[0, 1] = 5
        assert call_of(ranges, ranges) is not first


@pytest.fixture
def stand_in(monkeypatch):
    """Calls of the library for ranges in host memory; the names of those that were made."""
    names = []

    def call_of(call, q, k, v, sink, mask):
        return mask_of(q.shape[0], k.shape[0], *mask).calls.find(q, k, v, sink, call._options)

    def forward_under(call, q, k, v, sink, mask, is_checked):
        names.append("forward" if call._runner.backend is None else call._runner.backend.value)
        return call_of(call, q, k, v, sink, mask).forward(q, k, v, sink)

    def backward_under(call, dout, dlse, q, k, v, out, lse, sink, mask, is_checked):
        names.append("backward")
        made = call_of(call, q, k, v, sink, mask)
        return made.backward(dout, dlse, q, k, v, out, lse, sink)

    monkeypatch.setattr(RangesCall, "forward_under", forward_under)
    monkeypatch.setattr(RangesCall, "backward_under", backward_under)
    return names


def invoke(leaves, ranges, types=None, backend=None):
    invocation = RangesInvocation(*leaves, None, (ranges, ranges, types), Options(), backend)
    return run(*leaves, None, invocation, None)


def leaves_of(rows):
    return [torch.randn(rows, heads, 8, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.parametrize("backend", [None, "mma"])
def test_a_call_under_ranges_has_gradients(stand_in, backend):
    leaves = leaves_of(8)
    ranges = torch.tensor([[0, 6]], dtype=torch.int32)
    results = invoke(leaves, ranges, backend=backend), flex_flash_attn_func(*leaves, ranges, ranges)
    for (out, meta), (wanted, wanted_meta) in (results, results[::-1]):
        assert torch.equal(out, wanted) and torch.equal(meta.lse, wanted_meta.lse)
    found, expected = (torch.autograd.grad(out.sum(), leaves) for out, _ in results)
    assert all(torch.equal(f, e) for f, e in zip(found, expected))
    assert stand_in == [b"mma" if backend else "forward", "backward"]


def test_a_call_in_inference_mode(stand_in):
    leaves = leaves_of(8)
    with torch.inference_mode():
        ranges = torch.tensor([[0, 6]], dtype=torch.int32)
        out, _ = invoke(leaves, ranges)
    wanted, _ = flex_flash_attn_func(*leaves, ranges, ranges)
    assert torch.equal(out, wanted)
    found, _ = invoke(leaves, ranges)  # as in training under ranges that validation made
    found.sum().backward()
    assert stand_in == ["forward", "forward", "backward"]


@pytest.mark.parametrize("changes_types", [False, True])
def test_tensors_changed_between_forward_and_backward_are_refused(stand_in, changes_types):
    ranges = torch.tensor([[0, 6]], dtype=torch.int32)
    types = torch.zeros(1, dtype=torch.int32)
    out, _ = invoke(leaves_of(8), ranges, types)
    (types if changes_types else ranges[0, 1]).fill_(1)
    with pytest.raises(RuntimeError, match="was changed between forward and backward"):
        out.sum().backward()
    assert stand_in == ["forward"]
