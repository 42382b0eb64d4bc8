# SPDX-License-Identifier: Apache-2.0
"""Gradients on a GPU against dense float64 attention; streams, graphs, repeated calls."""

import contextlib
import gc
import random

import pytest
import torch

import dense
from magi_attention.api import flex_flash_attn_func
from on_gpu import (
    FAMILIES,
    NEEDS_GPU,
    PLACES,
    ROWS,
    as_float64,
    bound_plan,
    capture,
    check_close,
    inputs,
    no_waits,
    ranges_on,
)  # fmt: skip

pytestmark = NEEDS_GPU
FACTOR = 8.0


def check_gradients(leaves, exact, dtype=torch.bfloat16):
    for leaf, reference in zip(leaves, exact):
        assert leaf.grad.dtype == leaf.dtype and leaf.grad.is_cuda
        check_close(leaf.grad, reference.grad, dtype, FACTOR)


def attend_and_go_back(leaves, ranges, upstream, **options):
    out, _ = flex_flash_attn_func(*leaves, *ranges, **options)
    return torch.autograd.grad(out, leaves, upstream)


@PLACES
@FAMILIES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(dense.masks(ROWS)))
def test_masks(name, dtype, place):
    mask = dense.masks(ROWS)[name]
    leaves = inputs(dtype=dtype)
    exact = as_float64(*leaves)
    upstream = torch.randn(ROWS, 8, 64, device="cuda", dtype=dtype)
    out, meta = flex_flash_attn_func(*leaves, *ranges_on(mask, place))
    finite = meta.lse.isfinite()
    (out * upstream).sum().add(meta.lse[finite].sum()).backward()
    wanted, lse, _ = dense.attention(*exact, mask)
    ((wanted * upstream.double().cpu()).sum() + lse[lse.isfinite()].sum()).backward()
    check_gradients(leaves, exact, dtype)


@PLACES
@FAMILIES
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_rows_that_no_slice_covers_may_be_nan(dim, deterministic, place):
    """Behind the last document, between two, and in front of the first."""
    rows, bounds = 600, ([3, 170], [200, 511])
    ranges = torch.tensor(bounds, dtype=torch.int32)
    types = torch.ones(len(bounds), dtype=torch.int32)
    given = [t.cuda() if place == "device" else t for t in (ranges, ranges, types)]
    covered = torch.zeros(rows, dtype=torch.bool, device="cuda")
    for begin, end in bounds:
        covered[begin:end] = True
    leaves = inputs(rows, rows, dim=dim)
    upstream = torch.randn(rows, 8, dim, device="cuda", dtype=torch.bfloat16)
    options = {"deterministic": deterministic}
    wanted = attend_and_go_back(leaves, given, upstream, **options)
    for poisoned in range(4):
        tensors = [t.detach().clone() for t in (*leaves, upstream)]
        tensors[poisoned][~covered] = torch.nan
        found = attend_and_go_back(
            [t.requires_grad_() for t in tensors[:3]], given, tensors[3], **options
        )
        for gradient, expected in zip(found, wanted):
            assert torch.equal(gradient[~covered], torch.zeros_like(gradient[~covered]))
            check_close(gradient, expected.double().cpu(), factor=0.0 if deterministic else 4.0)


@PLACES
@FAMILIES
@pytest.mark.parametrize("layout", ["sh", "ssh"])
@pytest.mark.parametrize("softcap, scale", [(0.0, None), (5.0, 0.2)])
def test_sinks_and_options(layout, softcap, scale, place):
    mask = dense.masks(ROWS)["empty_rows" if softcap else "four_types"]
    leaves = inputs(heads=(4, 4), dim=128)
    sink = torch.randn(*((ROWS,) if layout == "ssh" else ()), 2, 4, device="cuda")
    leaves.append(sink.requires_grad_())
    exact = as_float64(*leaves)
    upstream = torch.randn(ROWS, 4, 128, device="cuda", dtype=torch.bfloat16)
    out, meta = flex_flash_attn_func(
        *leaves[:3], *ranges_on(mask, place), sink=leaves[3], sink_layout=layout, softcap=softcap,
        softmax_scale=scale, sm_margin=8,
    )  # fmt: skip
    (out * upstream).sum().add(meta.lse.sum()).backward()
    wanted, lse, _ = dense.attention(*exact[:3], mask, exact[3], scale, softcap)
    (wanted * upstream.double().cpu()).sum().add(lse.sum()).backward()
    check_gradients(leaves, exact)


@pytest.mark.parametrize("heads, dim", [((4, 1), 8), ((6, 2), 72), ((16, 2), 128)])
def test_heads_and_dims(heads, dim):
    mask = dense.masks(ROWS)["varlen_causal"]
    leaves = inputs(heads=heads, dim=dim)
    exact = as_float64(*leaves)
    out, _ = flex_flash_attn_func(*leaves, *ranges_on(mask, "host"))
    out.pow(2).sum().backward()
    dense.attention(*exact, mask)[0].pow(2).sum().backward()
    check_gradients(leaves, exact)


def test_strided_tensors():
    """q, k, v of one packed projection, and a gradient of out with strides of its own."""
    mask = dense.masks(ROWS)["causal"]
    packed = torch.randn(ROWS, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    exact = as_float64(packed)[0]
    ranges = ranges_on(mask, "host")
    out, _ = flex_flash_attn_func(packed[:, :8], packed[:, 8:10], packed[:, 10:], *ranges)
    upstream = torch.randn(8, 64, ROWS, device="cuda", dtype=torch.bfloat16).permute(2, 0, 1)
    out.backward(upstream)
    wanted, _, _ = dense.attention(exact[:, :8], exact[:, 8:10], exact[:, 10:], mask)
    wanted.backward(upstream.double().cpu())
    check_close(packed.grad, exact.grad, factor=FACTOR)


@pytest.mark.parametrize("pin_memory", [False, True])
def test_tensors_saved_in_host_memory(pin_memory):
    """They come back without the strides they had."""
    ranges = ranges_on(dense.masks(ROWS)["causal"], "host")
    gradients = []
    for is_offloaded in (False, True):
        packed = inputs(heads=(12, 1))[0]
        context = torch.autograd.graph.save_on_cpu(pin_memory=pin_memory)
        with context if is_offloaded else contextlib.nullcontext():
            parts = packed[:, :8], packed[:, 8:10], packed[:, 10:]
            out, _ = flex_flash_attn_func(*parts, *ranges, deterministic=True)
        out.float().pow(2).sum().backward()
        gradients.append(packed.grad)
    assert torch.equal(*gradients)


def test_gradient_of_lse_alone():
    mask = dense.masks(ROWS)["causal"]
    leaves = inputs()
    exact = as_float64(*leaves)
    _, meta = flex_flash_attn_func(*leaves, *ranges_on(mask, "host"))
    meta.lse.sum().backward()
    dense.attention(*exact, mask)[1].sum().backward()
    exact[2].grad = torch.zeros_like(exact[2])
    check_gradients(leaves, exact)


@PLACES
@FAMILIES
@pytest.mark.parametrize("deterministic", [False, True])
def test_repeated_calls(deterministic, place):
    """The same bits where they are asked for; dk and dv have them anyway."""
    rows = 4096
    leaves = inputs(rows, rows, heads=(8, 2), dim=128)
    ranges = ranges_on(dense.Mask([(0, rows)], [(0, rows)], [1], rows, rows), place)
    upstream = torch.randn(rows, 8, 128, device="cuda", dtype=torch.bfloat16)
    wanted = attend_and_go_back(leaves, ranges, upstream, deterministic=deterministic)
    for _ in range(20):
        found = attend_and_go_back(leaves, ranges, upstream, deterministic=deterministic)
        assert torch.equal(found[1], wanted[1]) and torch.equal(found[2], wanted[2])
        if deterministic:
            assert torch.equal(found[0], wanted[0])
        else:
            assert torch.allclose(found[0], wanted[0], atol=1e-2, rtol=1e-1)


@PLACES
@FAMILIES
def test_current_stream_and_no_hidden_waits(place):
    ranges = ranges_on(dense.masks(ROWS)["varlen_causal"], place)
    leaves = inputs()
    upstream = torch.randn(ROWS, 8, 64, device="cuda", dtype=torch.bfloat16)
    wanted = attend_and_go_back(leaves, ranges, upstream, deterministic=True)  # makes the lists
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    late = torch.zeros_like(upstream)
    with torch.cuda.stream(stream), no_waits():
        torch.cuda._sleep(20_000_000)
        late.copy_(upstream)
        found = attend_and_go_back(leaves, ranges, late, deterministic=True)
        assert not stream.query()  # enqueued behind the sleep
    stream.synchronize()
    assert all(torch.equal(f, w) for f, w in zip(found, wanted))


def test_memory_is_that_of_torch():
    """The workspace of a backward call comes from torch's allocator and goes back to it."""
    rows = 4096
    leaves = inputs(rows, rows, dim=128)
    ranges = ranges_on(dense.Mask([(0, rows)], [(0, rows)], [1], rows, rows), "host")
    out, _ = flex_flash_attn_func(*leaves, *ranges)
    upstream = torch.randn_like(out)
    gc.collect()  # what other tests left must not be freed in between
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        held = torch.cuda.memory_allocated() - before
        assert held == sum(t.numel() * t.element_size() for t in gradients)
        assert torch.cuda.max_memory_allocated() - before > held
        del gradients


@pytest.mark.parametrize("is_bound", [False, True])
def test_graphs(is_bound):
    """Forward and backward captured once, replayed with other values."""
    mask, bound = bound_plan()
    ranges = ranges_on(mask, "host")
    leaves = [bound.dispatch(t.detach()).requires_grad_() for t in inputs()]
    upstream = torch.randn_like(leaves[0])
    sink = torch.zeros(1, 8, device="cuda", requires_grad=True)

    def step():
        if is_bound:
            out, meta = bound.calc_attn(*leaves, sink)
        else:
            out, meta = flex_flash_attn_func(*leaves, *ranges, sink=sink, deterministic=True)
        return out, torch.autograd.grad((out, meta.lse), (*leaves, sink), (upstream, meta.lse))

    if not is_bound and leaves[0].shape[0] != ROWS:
        leaves = [t.detach()[:ROWS].requires_grad_() for t in leaves]
        upstream = upstream[:ROWS].contiguous()
    graph, (out, gradients) = capture(step)
    for seed in range(3):
        for leaf, new in zip(leaves, inputs(seed=seed)):
            leaf.data[:ROWS].copy_(new.detach())
        sink.data.normal_()
        graph.replay()
        wanted, wanted_gradients = step()
        assert torch.equal(out, wanted)
        for found, reference in zip(gradients, wanted_gradients):
            check_close(found, reference.double().cpu(), factor=1.0)


def documents_of(draw: random.Random, count: int) -> dense.Mask:
    """Packed documents, causal or full, of which some have no rows."""
    cuts = sorted(draw.randint(0, ROWS) for _ in range(count - 1))
    ranges = list(zip([0, *cuts], [*cuts, ROWS]))
    return dense.Mask(ranges, ranges, [draw.randint(0, 1) for _ in ranges], ROWS, ROWS)


def overlapping(draw: random.Random, count: int) -> dense.Mask:
    """Random slices of all types."""

    def some_ranges():
        return [tuple(sorted((draw.randint(0, ROWS), draw.randint(0, ROWS)))) for _ in range(count)]

    return dense.Mask(
        some_ranges(), some_ranges(), [draw.randint(0, 3) for _ in range(count)], ROWS, ROWS
    )


@pytest.mark.parametrize("is_deterministic", [False, True])
@FAMILIES
def test_graphs_follow_ranges_on_the_device(is_deterministic):
    """Forward and backward in one graph, replayed under 64 masks, each checked against float64."""
    draw, count = random.Random(7), 6
    leaves = inputs()
    exact = as_float64(*leaves)
    upstream = torch.randn(ROWS, 8, 64, device="cuda", dtype=torch.bfloat16)
    ranges = ranges_on(documents_of(draw, count), "device")

    def step():
        out, meta = flex_flash_attn_func(*leaves, *ranges, deterministic=is_deterministic)
        return out, meta.lse, torch.autograd.grad(out, leaves, upstream)

    graph, (out, lse, gradients) = capture(step)
    for number in range(64):
        mask = (documents_of, overlapping)[number % 2](draw, count)
        for target, new in zip(ranges, ranges_on(mask, "host")):
            target.copy_(new)
        graph.replay()
        wanted, wanted_lse, _ = dense.attention(*exact, mask)
        check_close(out, wanted)
        check_close(lse, wanted_lse, torch.bfloat16)
        expected = torch.autograd.grad(wanted, exact, upstream.double().cpu())
        for found, reference in zip(gradients, expected):
            check_close(found, reference, factor=FACTOR)


@FAMILIES
def test_backward_under_ranges_on_the_device_waits_for_nothing():
    leaves = inputs()
    upstream = torch.randn(ROWS, 8, 64, device="cuda", dtype=torch.bfloat16)
    attend_and_go_back(leaves, ranges_on(dense.masks(ROWS)["four_types"], "device"), upstream)
    ranges = ranges_on(documents_of(random.Random(1), 4), "device")  # not seen before
    with no_waits():
        attend_and_go_back(leaves, ranges, upstream)


@FAMILIES
def test_ranges_changed_between_forward_and_backward():
    leaves = inputs()
    ranges = torch.tensor([[0, ROWS]], dtype=torch.int32, device="cuda")
    out, _ = flex_flash_attn_func(*leaves, ranges, ranges)
    ranges[0, 1] = 7
    with pytest.raises(RuntimeError, match="was changed between forward and backward"):
        out.sum().backward()
    mask = dense.Mask([(0, 7)], [(0, 7)], [0], ROWS, ROWS)
    exact = as_float64(*leaves)
    flex_flash_attn_func(*leaves, ranges, ranges)[0].sum().backward()
    dense.attention(*exact, mask)[0].sum().backward()
    check_gradients(leaves, exact)
