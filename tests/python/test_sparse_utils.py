# SPDX-License-Identifier: Apache-2.0
"""Helpers of utils.sparse_utils: patterns, ranges and dense masks agree with each other."""

import pytest
import torch

import dense
from magi_attention.api import flex_flash_attn_func
from magi_attention.utils import sparse_utils as utils
from test_flex import close, inputs

HEADS_Q, HEADS_KV = 4, 2


def fold(q, k, v):
    """Heads into rows, as the helpers' ranges take them."""
    rows, group = q.shape[0], HEADS_Q // HEADS_KV
    folded = q.view(rows, HEADS_KV, group, -1).transpose(0, 1).reshape(HEADS_KV * rows, group, -1)
    return folded, *(x.transpose(0, 1).reshape(-1, 1, x.shape[2]) for x in (k, v))


def unfold(out, rows):
    return out.view(HEADS_KV, rows, HEADS_Q // HEADS_KV, -1).transpose(0, 1).flatten(1, 2)


def dense_of(mask, rows, cols):
    """bool [heads_q, rows_q, rows_k] of a mask of blocks [1, heads, q_blocks, k_blocks] whose sizes
    are rows [heads, q_blocks] and cols [heads_kv, k_blocks].
    """
    parts = []
    for head in range(HEADS_Q):
        of_mask, of_kv = head * mask.shape[1] // HEADS_Q, head * HEADS_KV // HEADS_Q
        part = mask[0, of_mask].repeat_interleave(rows[of_mask], 0)
        parts.append(part.repeat_interleave(cols[of_kv], 1))
    return torch.stack(parts)


def blocks(num, size):
    return torch.full((HEADS_KV, num), size)


def agrees(ranges, visible):
    """Attention under folded ranges is that under the dense mask [heads_q, rows_q, rows_k]."""
    rows_q, rows_k = visible.shape[1:]
    leaves = inputs(rows_q, rows_k, (HEADS_Q, HEADS_KV), dim=8)
    q_ranges, k_ranges = ranges
    assert q_ranges.dtype == k_ranges.dtype == torch.int32
    out, _ = flex_flash_attn_func(*fold(*leaves), q_ranges, k_ranges)
    wanted, _, _ = dense.attention(*leaves, visible)
    close(unfold(out, rows_q).detach(), wanted.detach())


@pytest.mark.parametrize("sizes", [(16, 16), (8, 32), (1, 4)])
def test_block_masks(sizes):
    num = 48 // sizes[0], 64 // sizes[1]
    mask, scores = utils.generate_block_sparse_pattern(HEADS_Q, HEADS_KV, *num, 0.5, device="cpu")
    assert mask.shape == (1, HEADS_KV, *num) and scores.shape == (HEADS_KV, *num)
    assert (mask.sum(-1) == num[1] // 2).all()
    visible = dense_of(mask, *map(blocks, num, sizes))
    exact = utils.generate_ranges_from_block_mask(
        utils.flatten_block_mask_to_kv_shape(mask), *sizes
    )
    padded = utils.generate_ranges_from_block_mask_triton(mask, *sizes)
    for ranges, count in ((exact, mask.sum()), (padded, mask.numel())):
        assert ranges[0].shape[0] == count
        agrees(ranges, visible)


def test_lists_of_blocks():
    lists, scores = utils.generate_block_sparse_pattern(
        HEADS_Q, HEADS_KV, 3, 4, 0.5, sparse_format="topk", device="cpu"
    )
    assert lists.dtype == torch.int32 and lists.shape == (HEADS_KV, 3, 2)
    mask, same = utils.generate_block_sparse_pattern(
        HEADS_Q, HEADS_KV, 3, 4, 0.5, device="cpu", scores=scores
    )
    assert same is scores and torch.equal(mask[0], listed(lists, 4))
    lists[1, 2, 0] = -1
    visible = dense_of(listed(lists, 4)[None], blocks(3, 16), blocks(4, 16))
    agrees(utils.generate_ranges_from_topk_indices(lists, 16, 16, 4), visible)


def listed(lists, num):
    """bool [..., num]: which blocks stand in lists [..., n]."""
    return (lists[..., None] == torch.arange(num)).any(-2)


@pytest.mark.parametrize("mode", ["per_kv_head", "per_q_head"])
def test_blocks_of_any_size(mode):
    mask, rows, cols = utils.generate_variable_block_sparse_pattern(
        HEADS_Q, HEADS_KV, 50, 70, 5, 6, 0.4, mode, 4, 7, device="cpu"
    )
    heads = mask.shape[1]
    assert rows.shape == (heads, 5) and (rows >= 4).all() and (rows.sum(1) == 50).all()
    assert cols.shape == (HEADS_KV, 6) and (cols >= 7).all() and (cols.sum(1) == 70).all()
    visible = dense_of(mask, rows, cols)
    if mode == "per_kv_head":
        flat = utils.flatten_block_mask_to_kv_shape(mask)
        ranges = utils.generate_ranges_from_var_block_mask(flat, rows, cols, HEADS_Q, HEADS_KV)
        return agrees(ranges, visible)
    flat = utils.flatten_block_mask(mask, HEADS_Q, HEADS_KV)
    ranges = utils.generate_ranges_from_var_block_mask(flat, rows, cols, HEADS_Q, HEADS_KV)
    q, k, v = inputs(50, 70, (HEADS_Q, HEADS_KV), dim=8)
    folded = (x.transpose(0, 1).reshape(-1, 1, x.shape[2]) for x in (q, k, v))
    out, _ = flex_flash_attn_func(*folded, *ranges)
    wanted, _, _ = dense.attention(q, k, v, visible)
    close(out.view(HEADS_Q, 50, -1).transpose(0, 1).detach(), wanted.detach())


@pytest.mark.parametrize("block", [1, 4])
def test_index_sparse_indices(block):
    lists = utils.build_index_sparse_indices(2, HEADS_KV, 10, 24, 3, 8, "cpu", block)
    assert lists.shape == (20, HEADS_KV, 8) and lists.dtype == torch.int32
    assert (lists[..., 3:] == -1).all() and (lists[..., 1:3] > lists[..., :2]).all()
    visible = listed(lists, 48 // block).repeat_interleave(block, 2).transpose(0, 1)
    for batch in range(2):
        own = visible[:, 10 * batch : 10 * batch + 10, 24 * batch : 24 * batch + 24]
        assert (own.sum(-1) == 3 * block).all()
    q, k, v = inputs(20, 48, (HEADS_Q, HEADS_KV), dim=8)
    out, _ = flex_flash_attn_func(q, k, v, index_sparse_indices=lists, sparse_k_block_size=block)
    wanted, _, _ = dense.attention(q, k, v, visible.repeat_interleave(HEADS_Q // HEADS_KV, 0))
    close(out.detach(), wanted.detach())


@pytest.mark.parametrize("sink_layout", ["sh", "ssh"])
def test_folded_lists(sink_layout):
    """The original's form for several kv heads, [rows * heads_kv, group, dim], is that of rows;
    tuning hints beside lists change nothing.
    """
    q, k, v = inputs(10, 24, (HEADS_Q, HEADS_KV), dim=8)
    lists = utils.build_index_sparse_indices(1, HEADS_KV, 10, 24, 3, 4, "cpu")
    group = HEADS_Q // HEADS_KV
    sink = torch.randn((2, group) if sink_layout == "sh" else (10 * HEADS_KV, 2, group))
    of_rows = sink.view(-1, HEADS_KV if sink_layout == "ssh" else 1, 2, group)
    whole = of_rows.expand(-1, HEADS_KV, -1, -1).transpose(1, 2).flatten(2)
    whole = whole if sink_layout == "ssh" else whole[0]
    options = dict(index_sparse_indices=lists, sink_layout=sink_layout, return_max_logits=True)
    wanted, known = flex_flash_attn_func(q, k, v, sink=whole, **options)
    folded = q.reshape(-1, group, 8), k.reshape(-1, 1, 8), v.reshape(-1, 1, 8)
    hints = dict(swap_ab=True, pack_gqa=True, ref_block_size=(64, 64))
    out, meta = flex_flash_attn_func(*folded, sink=sink, **options, **hints)
    assert torch.equal(out, wanted.reshape(-1, group, 8))
    assert torch.equal(meta.lse, known.lse.reshape(-1, group))
    assert torch.equal(meta.max_logits, known.max_logits.view(HEADS_KV, group).amax(0))
    assert int(meta.error_word[0]) == 0
    found = torch.autograd.grad(out.square().sum(), (q, k, v))
    for one, other in zip(found, torch.autograd.grad(wanted.square().sum(), (q, k, v))):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="k has 23 rows; allowed: a multiple of 2"):
        flex_flash_attn_func(folded[0], k[:23, :1], v[:23, :1], index_sparse_indices=lists)


def test_ref_blocks():
    for sizes in ((128, 128), (64, 64), (16, 64), (8, 128), (1, 128), (1, 1)):
        for group in (1, 8):
            chosen = utils.choose_ref_block(sizes, group)
            assert set(chosen) == {"ref_block_size", "swap_ab", "pack_gqa", "sparse_load"}
            assert chosen["pack_gqa"] == (group > 1 and sizes[0] < 128)
    assert utils.choose_ref_block((128, 128), 1)["ref_block_size"] == (128, 128)
    assert utils.choose_ref_block((1, 128), 1) == {
        "ref_block_size": (8, 64), "swap_ab": True, "pack_gqa": False, "sparse_load": False,
    }  # fmt: skip


def pattern(*sizes, **options):
    return utils.generate_block_sparse_pattern(*sizes, 0.5, device="cpu", **options)


def variable(num_q_blocks):
    return utils.generate_variable_block_sparse_pattern(
        2, 2, 10, 10, num_q_blocks, 3, 0.5, device="cpu"
    )


LISTS = torch.zeros(2, 3, 1, dtype=torch.int32)
MASK = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
MISTAKES = [
    (lambda: pattern(4, 3, 2, 2), "num_q_heads is 4"),
    (lambda: pattern(4, 2, 2, 2, mode="all"), "mode is 'all'"),
    (lambda: pattern(4, 2, 2, 2, sparse_format="csr"), "sparse_format is 'csr'"),
    (lambda: pattern(4, 2, 2, 2, scores=torch.zeros(2)), "scores has shape"),
    (lambda: utils.flatten_block_mask(MASK, 4, 2), "mask_4d has 2 heads"),
    (lambda: utils.flatten_block_mask_to_kv_shape(MASK.expand(2, -1, -1, -1)),
     r"mask_4d.shape\[0\] is 2"),
    (lambda: utils.generate_ranges_from_block_mask(MASK, 1, 1), "block_mask has 4 axes"),
    (lambda: utils.build_index_sparse_indices(1, 1, 4, 10, 2, 2, "cpu", 4), "S_kv is 10"),
    (lambda: utils.build_index_sparse_indices(1, 1, 4, 8, 3, 2, "cpu"), "topk is 3"),
    (lambda: variable(3), "10 rows have 3 blocks of 64"),
    (lambda: pattern(4, 0, 2, 2), "num_kv_heads is 0; allowed: 1 or more"),
    (lambda: pattern(0, 2, 2, 2), "num_q_heads is 0; allowed: 1 or more"),
    (lambda: pattern(4, 2, 2, 0), "num_kv_blocks is 0; allowed: 1 or more"),
    (lambda: pattern(4, 2, 0, 2), "num_q_blocks is 0; allowed: 1 or more"),
    (lambda: utils.generate_ranges_from_topk_indices(LISTS, 0, 4, 3), "block_m is 0; allowed: 1"),
    (lambda: utils.generate_ranges_from_topk_indices(LISTS, 4, 4, 0), "num_k_blocks is 0; allo"),
    (lambda: utils.generate_ranges_from_block_mask(MASK[0, 0], 4, 0), "block_n is 0; allowed: 1"),
    (lambda: utils.generate_ranges_from_block_mask_triton(MASK, 0, 4), "block_m is 0; allowed: 1"),
    (lambda: variable(0), "num_q_blocks is 0; allowed: 1 or more"),
    (lambda: utils.choose_ref_block((0, 128), 1), "q_size is 0; allowed: 1 or more"),
    (lambda: utils.choose_ref_block((1, 128), 0), "qhead_per_khead is 0; allowed: 1 or more"),
    (lambda: utils.build_index_sparse_indices(1, 1, 4, 8, 2, 2, "cpu", 0),
     "sparse_k_block_size is 0; allowed: 1 or more"),
]  # fmt: skip


@pytest.mark.parametrize("call, match", MISTAKES)
def test_mistakes(call, match):
    with pytest.raises(ValueError, match=match):
        call()
