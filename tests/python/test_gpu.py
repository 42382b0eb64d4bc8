# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU against dense float64 attention; skipped where there is none."""

import pytest
import torch
import torch.distributed as dist

import dense
from magi_attention import api
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


@PLACES
@FAMILIES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(dense.masks(ROWS)))
def test_forward(name, dtype, place):
    mask = dense.masks(ROWS)[name]
    q, k, v = inputs(dtype=dtype)
    out, meta = flex_flash_attn_func(q, k, v, *ranges_on(mask, place), return_max_logits=True)
    assert out.dtype == dtype and meta.lse.dtype == torch.float32 and out.is_cuda
    wanted = dense.attention(*as_float64(q, k, v), mask)
    check_close(out, wanted[0], dtype)
    check_close(meta.lse, wanted[1], dtype)
    check_close(meta.max_logits, wanted[2], dtype)


@PLACES
@FAMILIES
@pytest.mark.parametrize("layout", ["sh", "ssh"])
@pytest.mark.parametrize("softcap, scale", [(0.0, None), (5.0, 0.2)])
def test_options(layout, softcap, scale, place):
    mask = dense.masks(ROWS)["four_types"]
    q, k, v = inputs(heads=(4, 4), dim=128)
    sink = torch.randn(*((ROWS,) if layout == "ssh" else ()), 2, 4, device="cuda")
    out, meta = flex_flash_attn_func(
        q, k, v, *ranges_on(mask, place), sink=sink, sink_layout=layout, softcap=softcap,
        softmax_scale=scale, sm_margin=8,
    )  # fmt: skip
    wanted = dense.attention(*as_float64(q, k, v), mask, sink.double().cpu(), scale, softcap)
    check_close(out, wanted[0])
    check_close(meta.lse, wanted[1])


@PLACES
@FAMILIES
def test_current_stream_and_no_hidden_waits(place):
    mask = dense.masks(ROWS)["varlen_causal"]
    q, k, v = (t.detach() for t in inputs())
    ranges = ranges_on(mask, place)
    wanted, _ = flex_flash_attn_func(q, k, v, *ranges)  # makes what is made once
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    late = torch.zeros_like(q)
    with torch.cuda.stream(stream), no_waits():
        torch.cuda._sleep(20_000_000)
        late.copy_(q)
        out, _ = flex_flash_attn_func(late, k, v, *ranges)
        assert not stream.query()  # enqueued behind the sleep
    stream.synchronize()
    assert torch.equal(out, wanted)


@FAMILIES
def test_graphs_follow_ranges_on_the_device():
    q, k, v = (t.detach() for t in inputs())
    ranges = torch.tensor([[0, ROWS]], dtype=torch.int32, device="cuda")
    graph, (out, _) = capture(lambda: flex_flash_attn_func(q, k, v, ranges, ranges))
    for end in (ROWS, 100, 7):
        ranges[0, 1] = end
        graph.replay()
        mask = dense.Mask([(0, end)], [(0, end)], [0], ROWS, ROWS)
        check_close(out, dense.attention(*as_float64(q, k, v), mask)[0])


@FAMILIES
def test_sanity_check_of_ranges_on_the_device(monkeypatch):
    q, k, v = inputs()
    bad = torch.tensor([[0, ROWS + 1]], dtype=torch.int32, device="cuda")
    out, _ = flex_flash_attn_func(q, k, v, bad, bad)
    assert out.isfinite().all()
    monkeypatch.setenv("MAGI_ATTENTION_SANITY_CHECK", "1")
    with pytest.raises(ValueError, match=r"q_ranges\[1\] of slice 0 is outside"):
        flex_flash_attn_func(q, k, v, bad, bad)


def bad_tensors():
    """(change, error, pattern) against good tensors of bound plans and of the flex function."""
    q, k, v = (t.detach() for t in inputs())
    odd = torch.zeros(ROWS, 8, 65, device="cuda", dtype=torch.bfloat16)[:, :, :64]
    return [
        ((q.float(), k.float(), v.float()), TypeError, "q.dtype is torch.float32 on cuda:0"),
        ((q, k.cpu(), v), ValueError, "k is on cpu; allowed: cuda:0"),
        ((q, k, v.half()), TypeError, "v.dtype is torch.float16"),
        ((q.cpu(), k, v), ValueError, "k is on cuda:0; allowed: cpu"),
        ((q[..., :60], k[..., :60], v), ValueError, r"q.shape\[2\] is 60"),
        ((q[..., ::2], k[..., ::2], v), ValueError, r"q.stride\[2\] is 2"),
        ((odd, k, v), ValueError, r"q.stride\[1\] is 65"),
        ((q.flatten(1), k, v), ValueError, "q.rank is 2"),
        ((q[:, :7], k, v), ValueError, "heads_q is 7"),
    ]


def test_bad_arguments():
    q, k, v = (t.detach() for t in inputs())
    ranges = torch.tensor([[0, ROWS]], dtype=torch.int32)
    for given, error, pattern in bad_tensors():
        with pytest.raises(error, match=pattern):
            flex_flash_attn_func(*given, ranges, ranges)
    for given, error, pattern in (
        ((ranges, ranges.cuda()), ValueError, "k_ranges is on cuda:0; allowed: cpu"),
        ((ranges, ranges, torch.zeros(1, dtype=torch.int32, device="cuda")), ValueError,
         "attn_type_map is on cuda:0; allowed: cpu"),
        ((ranges + 1, ranges), ValueError, "q_ranges"),
    ):  # fmt: skip
        with pytest.raises(error, match=pattern):
            flex_flash_attn_func(q, k, v, *given)
    with pytest.raises(ValueError, match="sink is on cpu; allowed: cuda:0"):
        flex_flash_attn_func(q, k, v, ranges, ranges, sink=torch.zeros(1, 8))
    with pytest.raises(ValueError, match="q_ranges is on cuda:0; allowed: cpu"):
        flex_flash_attn_func(*(t.cpu() for t in (q, k, v)), ranges.cuda(), ranges.cuda())


@pytest.mark.parametrize("rows", [ROWS, 299])
def test_pipeline_of_one_rank(rows):
    mask, bound = bound_plan(rows=rows)
    leaves = inputs(rows, rows)
    local = [bound.dispatch(t) for t in leaves]
    out, meta = bound.calc_attn(*local, return_max_logits=True)
    whole = bound.undispatch(out)
    wanted = dense.attention(*as_float64(*leaves), mask)
    check_close(whole, wanted[0])
    check_close(bound.undispatch(meta.lse), wanted[1])
    check_close(meta.max_logits, wanted[2])
    assert torch.equal(bound.undispatch(bound.roll(local[0], 5)), torch.roll(leaves[0], 5, 0))
    with pytest.raises(ValueError, match=r"q.shape is \[.*, 4, 64\]; allowed"):
        bound.calc_attn(local[0][:, :4], *local[1:])
    upstream, exact = torch.randn_like(whole), as_float64(*leaves)
    whole.backward(upstream)
    dense.attention(*exact, mask)[0].backward(upstream.double().cpu())
    for leaf, reference in zip(leaves, exact):
        check_close(leaf.grad, reference.grad, factor=8.0)


def test_keys():
    """The original's functions over a group of one rank with nccl."""
    if not dist.is_initialized():
        dist.init_process_group(
            "nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0)
        )
    bounds = torch.tensor([0, 100, ROWS], dtype=torch.int32, device="cuda")
    key = api.magi_attn_varlen_key(
        bounds, bounds, 8, 2, 64, cp_group_or_mesh=dist.group.WORLD, causal=True
    )
    leaves = inputs()
    out, _ = api.calc_attn(*(api.dispatch(t, key) for t in leaves), key)
    documents = [(0, 100), (100, ROWS)]
    mask = dense.Mask(documents, documents, [1, 1], ROWS, ROWS)
    check_close(api.undispatch(out, key), dense.attention(*as_float64(*leaves), mask)[0])
    ids = api.get_position_ids(key)
    assert ids.is_cuda and ids[:ROWS].tolist() == list(range(ROWS))
    api.clear_cache()
