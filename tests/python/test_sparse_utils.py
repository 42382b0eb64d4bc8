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


def agrees(ranges, sdpa_mask):
    """Attention under folded ranges is that under the dense mask [1, heads_q, rows_q, rows_k]."""
    rows_q, rows_k = sdpa_mask.shape[2:]
    leaves = inputs(rows_q, rows_k, (HEADS_Q, HEADS_KV), dim=8)
    q_ranges, k_ranges = ranges
    assert q_ranges.dtype == k_ranges.dtype == torch.int32
    out, _ = flex_flash_attn_func(*fold(*leaves), q_ranges, k_ranges)
    wanted, _, _ = dense.attention(*leaves, sdpa_mask[0])
    close(unfold(out, rows_q).detach(), wanted.detach())


@pytest.mark.parametrize("sizes", [(16, 16), (8, 32), (1, 4)])
def test_block_masks(sizes):
    num = 48 // sizes[0], 64 // sizes[1]
    mask, scores = utils.generate_block_sparse_pattern(HEADS_Q, HEADS_KV, *num, 0.5, device="cpu")
    assert mask.shape == (1, HEADS_KV, *num) and scores.shape == (HEADS_KV, *num)
    assert (mask.sum(-1) == num[1] // 2).all()
    dense_mask = utils.get_sdpa_mask_from_block_sparse_mask(mask, 48, 64, *sizes, HEADS_Q)
    flat = utils.flatten_block_mask_to_kv_shape(mask)
    exact = utils.generate_ranges_from_block_mask(flat, *sizes)
    assert exact[0].shape[0] == mask.sum()
    agrees(exact, dense_mask)
    padded = utils.generate_ranges_from_block_mask_triton(mask, *sizes)
    assert padded[0].shape[0] == mask.numel()
    agrees(padded, dense_mask)


def test_lists_of_blocks():
    lists, scores = utils.generate_block_sparse_pattern(
        HEADS_Q, HEADS_KV, 3, 4, 0.5, sparse_format="topk", device="cpu"
    )
    assert lists.dtype == torch.int32 and lists.shape == (HEADS_KV, 3, 2)
    mask, same = utils.generate_block_sparse_pattern(
        HEADS_Q, HEADS_KV, 3, 4, 0.5, device="cpu", scores=scores
    )
    assert same is scores
    dense_mask = utils.get_sdpa_mask_from_topk_indices(lists, 48, 64, 16, 16, HEADS_Q)
    wanted = utils.get_sdpa_mask_from_block_sparse_mask(mask, 48, 64, 16, 16, HEADS_Q)
    assert torch.equal(dense_mask, wanted)
    lists[1, 2, 0] = -1
    dense_mask = utils.get_sdpa_mask_from_topk_indices(lists, 48, 64, 16, 16, HEADS_Q)
    for function in (
        utils.generate_ranges_from_topk_indices, utils.generate_ranges_from_topk_indices_triton
    ):  # fmt: skip
        agrees(function(lists, 16, 16, 4), dense_mask)


@pytest.mark.parametrize("mode", ["per_kv_head", "per_q_head"])
def test_blocks_of_any_size(mode):
    mask, rows, cols = utils.generate_variable_block_sparse_pattern(
        HEADS_Q, HEADS_KV, 50, 70, 5, 6, 0.4, mode, 4, 7, device="cpu"
    )
    heads = mask.shape[1]
    assert rows.shape == (heads, 5) and (rows >= 4).all() and (rows.sum(1) == 50).all()
    assert cols.shape == (HEADS_KV, 6) and (cols >= 7).all() and (cols.sum(1) == 70).all()
    dense_mask = utils.get_sdpa_mask_from_var_block_mask(mask, 50, 70, rows, cols, HEADS_Q)
    if mode == "per_kv_head":
        flat = utils.flatten_block_mask_to_kv_shape(mask)
        ranges = utils.generate_ranges_from_var_block_mask(flat, rows, cols, HEADS_Q, HEADS_KV)
        return agrees(ranges, dense_mask)
    flat = utils.flatten_block_mask(mask, HEADS_Q, HEADS_KV)
    ranges = utils.generate_ranges_from_var_block_mask(flat, rows, cols, HEADS_Q, HEADS_KV)
    q, k, v = inputs(50, 70, (HEADS_Q, HEADS_KV), dim=8)
    folded = (x.transpose(0, 1).reshape(-1, 1, x.shape[2]) for x in (q, k, v))
    out, _ = flex_flash_attn_func(*folded, *ranges)
    wanted, _, _ = dense.attention(q, k, v, dense_mask[0])
    close(out.view(HEADS_Q, 50, -1).transpose(0, 1).detach(), wanted.detach())


@pytest.mark.parametrize("block", [1, 4])
def test_index_sparse_indices(block):
    lists = utils.build_index_sparse_indices(2, HEADS_KV, 10, 24, 3, 8, "cpu", block)
    assert lists.shape == (20, HEADS_KV, 8) and lists.dtype == torch.int32
    assert (lists[..., 3:] == -1).all() and (lists[..., 1:3] > lists[..., :2]).all()
    masks = utils.get_sdpa_mask_from_index_sparse_indices(
        lists, 2, HEADS_Q, HEADS_KV, 10, 24, "cpu", block
    )
    assert (masks.sum(-1) == 3 * block).all()
    q, k, v = inputs(20, 48, (HEADS_Q, HEADS_KV), dim=8)
    out, _ = flex_flash_attn_func(q, k, v, index_sparse_indices=lists, sparse_k_block_size=block)
    for batch in range(2):
        of_q, of_k = slice(10 * batch, 10 * batch + 10), slice(24 * batch, 24 * batch + 24)
        counts = masks[batch]
        wanted, _, _ = dense.attention(q[of_q], k[of_k], v[of_k], counts)
        close(out[of_q].detach(), wanted.detach())


@pytest.mark.parametrize("block", [1, 4])
def test_inverted_lists(block, rng):
    """Every query stands in the lists of the blocks that it names, as often as it names them."""
    lists = torch.tensor([rng.randint(-1, 6) for _ in range(9 * 2 * 5)]).view(9, 2, 5)
    found, most = utils.invert_index_sparse_indices(lists.int(), 6 * block - block // 2, block, 8)
    assert found.shape == (6, 2, most) and most % 8 == 0 and found.dtype == torch.int32
    for number in range(6):
        for head in range(2):
            named = (lists[:, head] == number).sum(1)
            wanted = torch.arange(9).repeat_interleave(named).tolist()
            assert found[number, head].tolist() == wanted + [-1] * (most - len(wanted))
    by_name = dict(B=1, NHK=2, S_q=3, S_kv=8, topk=2, max_topk=4, device="cpu")
    assert utils.build_index_sparse_indices(**by_name).shape == (3, 2, 4)
    none = torch.empty(0, 2, 3, dtype=torch.int32)
    assert utils.invert_index_sparse_indices(none, 8)[0].shape == (8, 2, 0)


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


def test_bad_arguments():
    mask = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
    for call, match in (
        (lambda: utils.generate_block_sparse_pattern(4, 3, 2, 2, 0.5, device="cpu"),
         "num_q_heads is 4"),
        (lambda: utils.generate_block_sparse_pattern(4, 2, 2, 2, 0.5, "all", device="cpu"),
         "mode is 'all'"),
        (lambda: utils.generate_block_sparse_pattern(
            4, 2, 2, 2, 0.5, sparse_format="csr", device="cpu"), "sparse_format is 'csr'"),
        (lambda: utils.generate_block_sparse_pattern(4, 2, 2, 2, 0.5, scores=torch.zeros(2)),
         "scores has shape"),
        (lambda: utils.flatten_block_mask(mask, 4, 2), "mask_4d has 2 heads"),
        (lambda: utils.flatten_block_mask_to_kv_shape(mask.expand(2, -1, -1, -1)),
         r"mask_4d.shape\[0\] is 2"),
        (lambda: utils.generate_ranges_from_block_mask(mask, 1, 1), "block_mask has 4 axes"),
        (lambda: utils.build_index_sparse_indices(1, 1, 4, 10, 2, 2, "cpu", 4), "S_kv is 10"),
        (lambda: utils.build_index_sparse_indices(1, 1, 4, 8, 3, 2, "cpu"), "topk is 3"),
        (lambda: utils.generate_variable_block_sparse_pattern(
            2, 2, 10, 10, 3, 3, 0.5, device="cpu"), "10 rows have 3 blocks of 64"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            call()


def test_sizes_of_zero():
    lists = torch.zeros(2, 3, 1, dtype=torch.int32)
    mask = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
    for call, match in (
        (lambda: utils.generate_block_sparse_pattern(4, 0, 2, 2, 0.5, device="cpu"),
         "num_kv_heads is 0"),
        (lambda: utils.generate_block_sparse_pattern(0, 2, 2, 2, 0.5, device="cpu"),
         "num_q_heads is 0"),
        (lambda: utils.generate_block_sparse_pattern(4, 2, 2, 0, 0.5, device="cpu"),
         "num_kv_blocks is 0"),
        (lambda: utils.generate_block_sparse_pattern(4, 2, 0, 2, 0.5, device="cpu"),
         "num_q_blocks is 0"),
        (lambda: utils.generate_ranges_from_topk_indices(lists, 0, 4, 3), "block_m is 0"),
        (lambda: utils.generate_ranges_from_topk_indices(lists, 4, 4, 0), "num_k_blocks is 0"),
        (lambda: utils.generate_ranges_from_block_mask(mask[0, 0], 4, 0), "block_n is 0"),
        (lambda: utils.generate_ranges_from_block_mask_triton(mask, 0, 4), "block_m is 0"),
        (lambda: utils.get_sdpa_mask_from_block_sparse_mask(mask, 6, 8, 0, 2, 2),
         "block_size_q is 0"),
        (lambda: utils.get_sdpa_mask_from_topk_indices(lists, 6, 8, 2, 0, 2), "block_size_k is 0"),
        (lambda: utils.generate_variable_block_sparse_pattern(
            2, 2, 10, 10, 0, 3, 0.5, device="cpu"), "num_q_blocks is 0"),
        (lambda: utils.choose_ref_block((0, 128), 1), "q_size is 0"),
        (lambda: utils.choose_ref_block((1, 128), 0), "qhead_per_khead is 0"),
        (lambda: utils.build_index_sparse_indices(1, 1, 4, 8, 2, 2, "cpu", 0),
         "sparse_k_block_size is 0"),
        (lambda: utils.get_sdpa_mask_from_index_sparse_indices(
            lists, 0, 2, 2, 2, 8), "batch is 0"),
        (lambda: utils.get_sdpa_mask_from_index_sparse_indices(
            lists, 1, 2, 3, 2, 8, sparse_k_block_size=0), "sparse_k_block_size is 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{match}; allowed: 1 or more"):
            call()
