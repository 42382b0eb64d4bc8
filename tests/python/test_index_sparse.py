# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func under lists of keys against dense float64 attention."""

import random

import pytest
import torch
from torch._subclasses import FakeTensorMode

import dense
from magi_attention.api import flex_flash_attn_func
from magi_attention.functional import SparseForwardMeta, _sparse
from magi_attention.functional._operators import listed_backward_op, listed_forward_op
from sparse_masks import check, counts_of_lists, random_case
from test_flex import QKV, RANGE, close, graph_agrees, inputs

ROWS_Q, ROWS_K, HEADS = 30, 50, (4, 2)


def lists_of(entries=7, blocks=ROWS_K, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS_Q, HEADS[1], entries)
    return torch.randint(-1, blocks, shape, dtype=torch.int32, generator=generator)


@pytest.mark.parametrize("part", range(20))
def test_random_cases(part):
    """500 of the cases of sparse_masks.py, of blocks too."""
    for seed in range(25 * part, 25 * (part + 1)):
        generator = random.Random(seed)
        case = random_case(generator)
        try:
            check(case, generator)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {case.name}") from error


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_gradients_of_everything(layout, block):
    lists = lists_of(4, -(-ROWS_K // block))
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS, dim=6)
    lead = (ROWS_Q,) if layout == "ssh" else ()
    sink = torch.randn(*lead, 2, HEADS[0], dtype=torch.float64, requires_grad=True)

    def function(q, k, v, sink):
        out, meta = flex_flash_attn_func(
            q, k, v, index_sparse_indices=lists, sparse_k_block_size=block, sink=sink,
            sink_layout=layout, softcap=3.0, softmax_scale=0.4,
        )  # fmt: skip
        return out, meta.lse

    out, lse = function(q, k, v, sink)
    counts = counts_of_lists(lists, 2, ROWS_K, (1, block), ROWS_Q)
    wanted, wanted_lse, _ = dense.attention(q, k, v, counts, sink, 0.4, 3.0)
    close(out.detach(), wanted.detach())
    close(lse.detach(), wanted_lse.detach())
    upstream = torch.randn_like(out), torch.randn_like(lse)
    found = torch.autograd.grad((out, lse), (q, k, v, sink), upstream)
    expected = torch.autograd.grad((wanted, wanted_lse), (q, k, v, sink), upstream)
    for f, e in zip(found, expected):
        close(f, e)


def test_latents():
    """One row of 576 is the key, and its first 512 columns are the value."""
    q, rows, _ = inputs(ROWS_Q, ROWS_K, (4, 1), dim=576)
    lists = lists_of(9)[:, :1]
    out, _ = flex_flash_attn_func(q, rows, rows[..., :512], index_sparse_indices=lists)
    counts = counts_of_lists(lists, 4, ROWS_K)
    wanted, _, _ = dense.attention(q, rows, rows[..., :512], counts)
    upstream = torch.randn_like(out)
    close(out.detach(), wanted.detach())
    for f, e in zip(*(torch.autograd.grad(x, (q, rows), upstream) for x in (out, wanted))):
        close(f, e)


def test_order_does_not_matter_and_duplicates_count():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    lists = lists_of(9)
    shuffled = lists[..., torch.randperm(9)]
    out, meta = flex_flash_attn_func(q, k, v, index_sparse_indices=lists)
    other, _ = flex_flash_attn_func(q, k, v, index_sparse_indices=shuffled)
    close(other.detach(), out.detach())
    twice = torch.cat((lists, lists), dim=2)
    out_twice, meta_twice = flex_flash_attn_func(q, k, v, index_sparse_indices=twice)
    close(out_twice.detach(), out.detach())
    close(meta_twice.lse.detach(), meta.lse.detach() + torch.tensor(2.0).double().log())


def test_empty_lists():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    for lists in (torch.full((ROWS_Q, 2, 3), -1), torch.zeros(ROWS_Q, 2, 0)):
        out, meta = flex_flash_attn_func(q, k, v, index_sparse_indices=lists.int())
        assert (out == 0).all() and meta.lse.isneginf().all()
        for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
            assert (gradient == 0).all()


def test_entries_outside_count_as_none_and_are_told(monkeypatch):
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    lists = lists_of()
    wrong = lists.clone()
    wrong[4, 1, 2], wrong[5, 0, 6] = ROWS_K, -2
    good = lists.clone()
    good[4, 1, 2] = good[5, 0, 6] = -1
    out, meta = flex_flash_attn_func(q, k, v, index_sparse_indices=wrong)
    wanted, clean = flex_flash_attn_func(q, k, v, index_sparse_indices=good)
    assert torch.equal(out, wanted)
    assert isinstance(meta, SparseForwardMeta)
    assert meta.error_word.tolist() == [2, (4 * 2 + 1) * 7 + 2]
    assert clean.error_word.tolist() == [0, -1]
    monkeypatch.setenv("MAGI_ATTENTION_SANITY_CHECK", "1")
    flex_flash_attn_func(q, k, v, index_sparse_indices=good)
    pattern = "2 entries that are no block of the keys, the first at 65"
    with pytest.raises(ValueError, match=pattern):
        flex_flash_attn_func(q, k, v, index_sparse_indices=wrong)


def test_blocks_of_keys_are_their_keys():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    blocks = lists_of(3, 7)
    keys = (blocks[..., None] * 8 + torch.arange(8)).masked_fill(blocks[..., None] < 0, -1)
    keys = keys.masked_fill(keys >= ROWS_K, -1).flatten(2).int()
    by_block = flex_flash_attn_func(q, k, v, index_sparse_indices=blocks, sparse_k_block_size=8)
    by_key = flex_flash_attn_func(q, k, v, index_sparse_indices=keys)
    assert torch.equal(by_block[0], by_key[0]) and torch.equal(by_block[1].lse, by_key[1].lse)


def test_max_logits():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    lists = lists_of()
    _, meta = flex_flash_attn_func(q, k, v, index_sparse_indices=lists, return_max_logits=True)
    counts = counts_of_lists(lists, 2, ROWS_K)
    close(meta.max_logits, dense.attention(q, k, v, counts)[2].detach())


def test_names_of_1_1_1_and_arguments_without_effect():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    lists = lists_of(3, 7)
    wanted, _ = flex_flash_attn_func(q, k, v, index_sparse_indices=lists, sparse_k_block_size=8)
    for loop in (None, False, True):
        found, _ = flex_flash_attn_func(
            q, k, v, index_attn_indices=lists, k_block_size=8, index_attn=True,
            swap_bwd_qk_loop=loop, pack_gqa=True, deterministic=True, range_merge=True,
        )  # fmt: skip
        assert torch.equal(found, wanted)
    found, _ = flex_flash_attn_func(
        q, k, v, index_sparse_indices=lists, sparse_k_block_size=8, k_block_size=8,
        index_sparse=True, auto_range_merge=True, disable_fwd_atomic_reduction=True,
    )  # fmt: skip
    assert torch.equal(found, wanted)


def test_lists_changed_in_place_are_seen():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    lists = lists_of()
    first, _ = flex_flash_attn_func(q, k, v, index_sparse_indices=lists)
    lists.fill_(0)
    second, _ = flex_flash_attn_func(q, k, v, index_sparse_indices=lists)
    assert not torch.equal(first, second)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lists.fill_(1)
        second.sum().backward()


def test_strided_inputs():
    q, k, v = inputs(ROWS_Q, ROWS_K, HEADS)
    lists = lists_of()
    wanted, _ = flex_flash_attn_func(q, k, v, index_sparse_indices=lists)
    turned = [t.detach().transpose(0, 1).contiguous().transpose(0, 1) for t in (q, k, v)]
    strided = lists.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    found, _ = flex_flash_attn_func(*turned, index_sparse_indices=strided)
    assert torch.equal(found, wanted)


class TestCompiler:
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_full_graph(self, dynamic):
        """Lists that a top-k inside the graph makes."""
        sink = torch.randn(1, HEADS[0])

        def layer(q, k, v, sink, scores):
            lists = scores.topk(5, dim=-1).indices.int()
            out, meta = flex_flash_attn_func(q * 2, k, v, index_sparse_indices=lists, sink=sink)
            return out + 1, meta.lse, meta.error_word

        scores = torch.rand(ROWS_Q, HEADS[1], ROWS_K)

        def leaves():
            return [*inputs(ROWS_Q, ROWS_K, HEADS), sink.clone().requires_grad_(), scores]

        graph_agrees(layer, leaves, dynamic)

    def test_operators(self):
        lists = lists_of()
        q, k, v = (t.detach() for t in inputs(ROWS_Q, ROWS_K, HEADS, dim=8))
        sink = torch.randn(2, HEADS[0], dtype=torch.float64)
        for given_sink, with_max in ((None, False), (sink, True)):
            arguments = (q, k, v, lists, given_sink, 1, 0.0, 0.0, 0, with_max, 0)
            torch.library.opcheck(listed_forward_op, arguments)
            out, lse, _, _ = listed_forward_op(*arguments)
            torch.library.opcheck(
                listed_backward_op,
                (out, lse, q, k, v, out, lse, lists, given_sink, 1, 0.0, 0.0, 0, 0, False),
            )

    def test_fake_tensors(self):
        with FakeTensorMode():
            q, kv = torch.empty(8, 4, 16, dtype=torch.bfloat16), torch.empty(8, 2, 16).bfloat16()
            lists = torch.zeros(8, 2, 3, dtype=torch.int32)
            out, meta = flex_flash_attn_func(q, kv, kv, index_sparse_indices=lists)
        assert out.shape == (8, 4, 16) and out.dtype == torch.bfloat16
        assert meta.lse.shape == (8, 4) and meta.error_word.shape == (2,)


GOOD = {**QKV, "index_sparse_indices": torch.zeros(6, 2, 3, dtype=torch.int32)}
BAD = [
    ({"index_sparse_indices": [1]}, TypeError, "index_sparse_indices is a list"),
    ({"index_sparse_indices": torch.zeros(6, 2, 3).long()}, TypeError, "dtype is torch.int64"),
    ({"index_sparse_indices": torch.ones(6, 2, 3).bool()}, TypeError, "int32; try: block_sparse"),
    ({"index_sparse_indices": torch.zeros(6, 3, dtype=torch.int32)}, ValueError, "has shape"),
    ({"index_sparse_indices": torch.zeros(5, 2, 3, dtype=torch.int32)}, ValueError,
     r"has shape \[5, 2, 3\]; allowed: \[6, 2, n\]"),
    ({"index_sparse_indices": torch.zeros(6, 2, 3, dtype=torch.int32, device="meta")}, ValueError,
     "index_sparse_indices is on meta"),
    ({"index_attn_indices": torch.zeros(6, 2, 3, dtype=torch.int32)}, ValueError,
     "index_attn_indices is given beside"),
    ({"q_ranges": RANGE}, ValueError, "q_ranges is given beside index_sparse_indices"),
    ({"block_sparse": True}, ValueError, "block_sparse is given beside"),
    ({"sparse_k_block_size": 0}, ValueError, "sparse_k_block_size is 0"),
    ({"sparse_k_block_size": 2, "k_block_size": 4}, ValueError, "k_block_size is 4 beside"),
    ({"q_block_size": 257}, ValueError, "q_block_size is 257"),
    ({"q_block_size": "2"}, TypeError, "q_block_size is '2'"),
    ({"q_block_size": 2}, ValueError, r"allowed: \[3, 2, n\]"),
    ({"sm_margin": -1}, ValueError, "sm_margin is -1"),
    ({"softcap": -1.0}, ValueError, "softcap is -1.0"),
    ({"v": torch.zeros(5, 2, 8)}, ValueError, r"v.shape is \[5, "),
]  # fmt: skip


@pytest.mark.parametrize("change, error, match", BAD, ids=[b[2] for b in BAD])
def test_bad_arguments(change, error, match):
    flex_flash_attn_func(**GOOD)
    with pytest.raises(error, match=match):
        flex_flash_attn_func(**{**GOOD, **change})


def test_another_backend_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "sdpa")
    with pytest.raises(NotImplementedError, match="backend torch takes no lists of single queries"):
        flex_flash_attn_func(**GOOD)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_of_latents_is_that_of_one_tensor(compiled):
    """Which holds on GPUs alone; a compiler cannot see whose view a tensor is."""
    apply = _sparse.check_latents
    if compiled:
        apply = torch.compile(apply, backend="eager")
    k = torch.zeros(4, 1, 576)
    apply(k, k[..., :512].clone())  # without gradients
    k.requires_grad_()
    apply(k, k[..., :512])
    with pytest.raises(ValueError, match="v is no view of k for autograd"):
        apply(k, k.detach()[..., :512])
    if not compiled:
        with pytest.raises(ValueError, match="v is no view of k for autograd"):
            apply(k, k[..., :512].clone())
