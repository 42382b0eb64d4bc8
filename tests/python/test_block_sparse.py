# SPDX-License-Identifier: Apache-2.0
"""Attention between blocks of rows against dense float64 attention. Random cases of it are in
test_index_sparse.py.
"""

import pytest
import torch

import dense
from magi_attention._native.attention import Options
from magi_attention._native.masked import BlockCall, BlockMask, BlockShape
from magi_attention.api import flex_flash_attn_func
from magi_attention.functional import _sparse, block_sparse_attn_func
from sparse_masks import below_diagonal, counts_of_blocks, counts_of_lists
from test_flex import QKV, close, inputs
from test_views import LAYOUTS, permuted

ROWS_Q, ROWS_K, HEADS = 70, 90, (4, 2)
SIZES = {"q_block_size": 16, "k_block_size": 32}
NUM_Q, NUM_K = 5, 3


def random_mask(heads=HEADS[1], seed=0, share=0.5):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(heads, NUM_Q, NUM_K, generator=generator) < share


def compare(call, counts, sink=None):
    """out, lse and all gradients of call(q, k, v) against dense attention."""
    leaves = inputs(ROWS_Q, ROWS_K, HEADS)
    out, meta = call(*leaves)
    wanted, lse, _ = dense.attention(*leaves, counts, sink)
    close(out.detach(), wanted.detach())
    close(meta.lse.detach(), lse.detach())
    if sink is not None and sink.requires_grad:
        leaves.append(sink)
    upstream = torch.randn_like(out), torch.randn_like(lse)
    found = torch.autograd.grad((out, meta.lse), leaves, upstream)
    expected = torch.autograd.grad((wanted, lse), leaves, upstream)
    for f, e in zip(found, expected):
        close(f, e)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("sizes", [(16, 32), (1, 16), (70, 90), (32, 1), (256, 256), (17, 23)])
def test_masks(sizes, heads, is_causal):
    num = -(-ROWS_Q // sizes[0]), -(-ROWS_K // sizes[1])
    mask = torch.rand(heads, *num, generator=torch.Generator().manual_seed(3)) < 0.5
    counts = counts_of_blocks(mask.expand(2, -1, -1), 2, sizes, ROWS_Q, ROWS_K)
    if is_causal:
        counts = counts * below_diagonal(ROWS_Q, ROWS_K)

    def call(q, k, v):
        return block_sparse_attn_func(
            q, k, v, mask, q_block_size=sizes[0], k_block_size=sizes[1], is_causal=is_causal
        )

    compare(call, counts)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("has_gradients", [False, True])
def test_kernels_for_blocks_get_masks_without_gaps(monkeypatch, has_gradients, layout):
    """They are told no strides, and stand in for themselves here: they need a GPU."""
    seen = []

    def attend(call, tensors, visible):
        seen.append((visible, BlockMask(BlockShape(2, 16, 32, False), visible)))
        return tensors[0], tensors[0][..., 0], None

    monkeypatch.setattr(_sparse, "find_block_call", lambda *_: "a call")
    monkeypatch.setattr(_sparse, "attend_by_blocks", attend)
    mask, lists = layout(random_mask()), layout(torch.zeros(NUM_Q, 2, 4, dtype=torch.int32))
    leaves = inputs(ROWS_Q, ROWS_K, HEADS)
    with torch.set_grad_enabled(has_gradients):
        block_sparse_attn_func(*leaves, mask, **SIZES)
        block_sparse_attn_func(*leaves, block_lists=lists, **SIZES)
    assert seen[0][0].is_contiguous() and torch.equal(seen[0][0], mask)
    assert seen[1][0][..., 0].eq(4).all()
    if layout is permuted:
        with pytest.raises(ValueError, match=r"block_mask has strides .*; allowed: row-major"):
            BlockMask(BlockShape(2, 16, 32, False), mask)


@pytest.mark.parametrize("is_causal", [False, True])
def test_lists_of_blocks(is_causal):
    """Several times the same block, none, and blocks that do not exist."""
    lists = torch.randint(-1, NUM_K, (NUM_Q, 2, 4), dtype=torch.int32)
    lists[1, 0, 2], lists[2, 1, 0] = NUM_K, -7
    counts = counts_of_lists(lists, 2, ROWS_K, (16, 32), ROWS_Q)
    if is_causal:
        counts = counts * below_diagonal(ROWS_Q, ROWS_K)

    def call(q, k, v):
        out, meta = block_sparse_attn_func(q, k, v, block_lists=lists, is_causal=is_causal, **SIZES)
        assert meta.error_word.tolist() == [2, 10]
        return out, meta

    compare(call, counts)


def test_lists_of_blocks_of_queries_by_flex():
    lists = torch.randint(-1, NUM_K, (NUM_Q, 2, 4), dtype=torch.int32)
    counts = counts_of_lists(lists, 2, ROWS_K, (16, 32), ROWS_Q)

    def call(q, k, v):
        return flex_flash_attn_func(
            q, k, v, index_sparse_indices=lists, q_block_size=16, sparse_k_block_size=32
        )

    compare(call, counts)
    leaves = inputs(ROWS_Q, ROWS_K, HEADS)
    with pytest.raises(NotImplementedError, match="return_max_logits is True with 2 kv heads"):
        flex_flash_attn_func(
            *leaves, index_sparse_indices=lists, q_block_size=16, sparse_k_block_size=32,
            return_max_logits=True,
        )  # fmt: skip


@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_sinks_of_folded_heads(layout):
    mask = random_mask()
    lead = (ROWS_Q,) if layout == "ssh" else ()
    sink = torch.randn(*lead, 3, HEADS[0], dtype=torch.float64, requires_grad=True)

    def call(q, k, v):
        return block_sparse_attn_func(q, k, v, mask, sink=sink, sink_layout=layout, **SIZES)

    compare(call, counts_of_blocks(mask, 2, (16, 32), ROWS_Q, ROWS_K), sink)


def test_blocks_that_see_nothing():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    for share in (0.0, 1.0):
        mask = random_mask(share=share)
        mask[0, 2] = False
        out, meta = block_sparse_attn_func(q, k, v, mask, **SIZES)
        assert (out[32:48, :2] == 0).all() and meta.lse[32:48, :2].isneginf().all()
        assert meta.lse[32:48, 2:].isfinite().all() == (share == 1.0)


class TestCapacity:
    """In a compiled graph the host does not read the mask, as on a GPU."""

    @staticmethod
    def compiled(max_runs):
        def layer(q, k, v, mask):
            out, meta = block_sparse_attn_func(q, k, v, mask, max_runs=max_runs, **SIZES)
            return out, meta.lse, meta.error_word

        return torch.compile(layer, fullgraph=True, backend="aot_eager")

    def test_masks_of_one_graph(self):
        layer = self.compiled(None)
        for seed in range(6):
            mask = random_mask(seed=seed, share=seed / 5)
            q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
            out, lse, word = layer(q, k, v, mask)
            wanted, meta = block_sparse_attn_func(q, k, v, mask, **SIZES)
            close(out.detach(), wanted.detach())
            close(lse.detach(), meta.lse.detach())
            assert word.tolist() == [0, -1]
            upstream = torch.randn_like(out)
            found = torch.autograd.grad(out, (q, k, v), upstream)
            for f, e in zip(found, torch.autograd.grad(wanted, (q, k, v), upstream)):
                close(f, e)

    def test_one_too_small_is_never_a_wrong_result(self):
        mask = torch.zeros(2, NUM_Q, NUM_K, dtype=torch.bool)
        mask[0, :, 0] = mask[1, :, 2] = True
        q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
        fits, _, word = self.compiled(10)(q, k, v, mask)
        assert fits.isfinite().all() and word.tolist() == [0, -1]
        out, lse, word = self.compiled(9)(q, k, v, mask)
        assert out.isnan().all() and lse.isnan().all() and word.tolist() == [1, -1]
        with pytest.raises(ValueError, match="block_mask has 10 runs; allowed: 9, max_runs"):
            block_sparse_attn_func(q, k, v, mask, max_runs=9, **SIZES)


GOOD = {
    **QKV, "block_mask": torch.zeros(2, 3, 2, dtype=torch.bool), "q_block_size": 2,
    "k_block_size": 3,
}  # fmt: skip
LISTS = torch.zeros(3, 2, 1, dtype=torch.int32)
BAD = [
    ({"block_mask": None}, ValueError, "neither of them is given"),
    ({"block_lists": LISTS}, ValueError, "both are given"),
    ({"block_mask": None, "block_lists": LISTS, "max_runs": 3}, ValueError, "max_runs is 3 beside"),
    ({"block_mask": [True]}, TypeError, "block_mask is a list"),
    ({"block_mask": torch.zeros(2, 3, 2)}, TypeError, "block_mask.dtype is torch.float32"),
    ({"block_mask": torch.zeros(3, 3, 2).bool()}, ValueError, r"block_mask has shape \[3, 3, 2\]"),
    ({"block_mask": torch.zeros(2, 3, 3).bool()}, ValueError, r"block_mask has shape \[2, 3, 3\]"),
    ({"block_mask": torch.zeros(2, 3, 2, device="meta").bool()}, ValueError,
     "block_mask is on meta"),
    ({"block_mask": None, "block_lists": LISTS[:2]}, ValueError,
     r"block_lists has shape \[2, 2, 1\]; allowed: \[3, 2, n\]"),
    ({"block_mask": None, "block_lists": LISTS.long()}, TypeError, "block_lists.dtype is"),
    ({"block_mask": None, "block_lists": [1]}, TypeError, "block_lists is a list"),
    ({"q_block_size": 0}, ValueError, "q_block_size is 0"),
    ({"k_block_size": 257}, ValueError, "k_block_size is 257"),
    ({"max_runs": 0}, ValueError, "max_runs is 0"),
    ({"q": torch.zeros(6, 3, 8)}, ValueError, "heads_q is 3"),
    ({"sink": torch.zeros(1, 3)}, ValueError, "sink.shape is"),
    ({"softcap": -1.0}, ValueError, "softcap is -1.0"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, match", BAD, ids=[b[2] for b in BAD])
def test_bad_arguments(change, error, match):
    block_sparse_attn_func(**GOOD)
    with pytest.raises(error, match=match):
        block_sparse_attn_func(**{**GOOD, **change})


def test_entries_that_are_no_block_are_those_of_the_argument(monkeypatch):
    monkeypatch.setenv("MAGI_ATTENTION_SANITY_CHECK", "1")
    lists = torch.full((3, 2, 1), 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="block_lists has 6 entries that are no block"):
        block_sparse_attn_func(**{**GOOD, "block_mask": None, "block_lists": lists})


def test_the_library_reads_a_mask_that_lives():
    """It refuses tensors on the CPU once it has read the mask."""
    q, k, v = (t.detach().bfloat16() for t in inputs(ROWS_Q, ROWS_K, HEADS))
    call = BlockCall(q, k, v, None, BlockShape(HEADS[1], 16, 32, False), Options())
    for _ in range(100):
        with pytest.raises(ValueError, match=r"q\.device is -1"):
            call.is_taken()
