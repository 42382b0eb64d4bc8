# SPDX-License-Identifier: Apache-2.0
"""Sparse attention on a GPU: masks and lists of blocks, and lists of keys, that are made there."""

import random

import pytest
import torch

import dense
from magi_attention.api import flex_flash_attn_func
from magi_attention.functional import block_sparse_attn_func
from magi_attention.functional._operators import listed_backward_op, listed_forward_op
from magi_attn_extensions.dsa_interface import dsa_attn_func
from on_gpu import NEEDS_GPU, ROWS, as_float64, capture, check_close, inputs, no_waits
from sparse_masks import check, counts_of_lists, random_case

pytestmark = NEEDS_GPU
SIZES = {"q_block_size": 32, "k_block_size": 64}
NUM_Q, NUM_K = -(-ROWS // 32), -(-ROWS // 64)


def random_mask(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(2, NUM_Q, NUM_K, generator=generator) < 0.5).cuda()


@pytest.mark.parametrize("part", range(10))
def test_random_cases(part):
    """100 of the cases of sparse_masks.py that run on a GPU."""
    for seed in range(10 * part, 10 * (part + 1)):
        generator = random.Random(seed)
        case = random_case(generator, on_gpu=True)
        try:
            check(case, generator, "cuda")
        except Exception as error:
            raise AssertionError(f"seed {seed}: {case.name}") from error


def test_forward_waits_for_nothing():
    q, k, v = (t.detach() for t in inputs())
    masks = [random_mask(seed) for seed in range(3)]
    wanted = [block_sparse_attn_func(q, k, v, mask, **SIZES)[0] for mask in masks]
    torch.cuda.synchronize()
    with no_waits():
        found = [block_sparse_attn_func(q, k, v, mask, **SIZES) for mask in masks]
    for (out, meta), expected in zip(found, wanted):
        assert torch.equal(out, expected) and meta.error_word.tolist() == [0, -1]


def test_a_captured_forward_follows_the_mask():
    q, k, v = (t.detach() for t in inputs())
    mask = random_mask()
    graph, (out, _) = capture(lambda: block_sparse_attn_func(q, k, v, mask, **SIZES))
    for seed in range(4):
        mask.copy_(random_mask(seed))
        graph.replay()
        wanted, _ = block_sparse_attn_func(q, k, v, mask, **SIZES)
        assert torch.equal(out, wanted)


def test_room_for_too_few_runs_is_never_a_wrong_result():
    q, k, v = (t.detach() for t in inputs())
    mask = torch.zeros(2, NUM_Q, NUM_K, dtype=torch.bool, device="cuda")
    mask[:, :, 1] = True
    out, meta = block_sparse_attn_func(q, k, v, mask, max_runs=2 * NUM_Q, **SIZES)
    assert out.isfinite().all() and meta.error_word.tolist() == [0, -1]
    out, meta = block_sparse_attn_func(q, k, v, mask, max_runs=2 * NUM_Q - 3, **SIZES)
    assert out.isnan().all() and meta.lse.isnan().all()
    assert meta.error_word.tolist() == [3, -1]


def key_lists(seed=0, entries=150, rows_k=ROWS):
    """Of single keys, with none, several times the same and entries outside."""
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS, 2, entries)
    lists = torch.randint(-2, rows_k + 1, shape, dtype=torch.int32, generator=generator)
    return lists.masked_fill(torch.rand(shape[:2], generator=generator)[..., None] < 0.1, -1).cuda()


@pytest.mark.parametrize("heads", [(8, 2), (128, 1), (130, 2)])
@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("dim", [64, 128])
def test_lists_of_keys(heads, block, dim):
    q, k, v = (t.detach() for t in inputs(heads=heads, dim=dim))
    lists = key_lists(rows_k=-(-ROWS // block))[:, : heads[1]].contiguous()
    sink = torch.randn(2, heads[0])
    for softcap in (0.0, 5.0):
        out, meta = flex_flash_attn_func(
            q, k, v, index_sparse_indices=lists, sparse_k_block_size=block, sink=sink.cuda(),
            softcap=softcap, return_max_logits=softcap > 0,
        )  # fmt: skip
        counts = counts_of_lists(lists.cpu(), heads[0] // heads[1], ROWS, (1, block), ROWS)
        exact = as_float64(q, k, v)
        wanted = dense.attention(*exact, counts, sink.double(), None, softcap)
        check_close(out, wanted[0])
        check_close(meta.lse, wanted[1], torch.float32, 1000.0)
        if softcap:
            check_close(meta.max_logits, wanted[2], torch.float32, 1000.0)
        is_bad = ((lists < -1) | (lists >= -(-ROWS // block))).flatten()
        assert meta.error_word.tolist() == [is_bad.sum(), is_bad.nonzero()[0]]


def test_a_forward_under_lists_of_keys_waits_for_nothing():
    q, k, v = (t.detach() for t in inputs())
    lists = [key_lists(seed) for seed in range(3)]
    wanted = [flex_flash_attn_func(q, k, v, index_sparse_indices=x)[0] for x in lists]
    torch.cuda.synchronize()
    with no_waits():
        found = [flex_flash_attn_func(q, k, v, index_sparse_indices=x)[0] for x in lists]
    assert all(map(torch.equal, found, wanted))


def test_a_captured_forward_follows_the_lists_of_keys():
    q, k, v = (t.detach() for t in inputs())
    lists = key_lists()

    def attend():
        return flex_flash_attn_func(q, k, v, index_sparse_indices=lists)

    graph, (out, meta) = capture(attend)
    for seed in range(4):
        lists.copy_(key_lists(seed))
        graph.replay()
        wanted, other = attend()
        assert torch.equal(out, wanted) and torch.equal(meta.error_word, other.error_word)


def test_dsa_attn_func():
    q, k, v = (t.detach() for t in inputs())
    lists = key_lists()
    out, lse = dsa_attn_func(q, k, v, lists)
    wanted, meta = flex_flash_attn_func(q, k, v, index_sparse_indices=lists)
    assert torch.equal(out, wanted) and torch.equal(lse, meta.lse)


def test_operators_under_lists_of_keys():
    q, k, v = (t.detach() for t in inputs())
    lists = key_lists()
    sink = torch.randn(2, 8, device="cuda")
    for given_sink, with_max in ((None, False), (sink, True)):
        numbers = (1, 0.0, 0.0, 0)
        arguments = (q, k, v, lists, given_sink, *numbers, with_max, 2)
        torch.library.opcheck(listed_forward_op, arguments)
        out, lse, _, _ = listed_forward_op(*arguments)
        given = (out, lse, q, k, v, out, lse, lists, given_sink, *numbers, 2, False)
        torch.library.opcheck(listed_backward_op, given, test_utils=("test_schema",))


@pytest.mark.parametrize("heads", [(8, 2), (128, 1), (160, 1), (130, 2)])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_gradients_under_lists_of_keys(heads, softcap):
    """Of everything; lse too."""
    leaves = inputs(heads=heads, dim=128)
    sink = torch.randn(2, heads[0], device="cuda", requires_grad=True)
    lists = key_lists()[:, : heads[1]].contiguous()
    out, meta = flex_flash_attn_func(
        *leaves, index_sparse_indices=lists, sink=sink, softcap=softcap
    )
    upstream = torch.randn_like(out), torch.randn_like(meta.lse)
    found = torch.autograd.grad((out, meta.lse), (*leaves, sink), upstream)
    counts = counts_of_lists(lists.cpu(), heads[0] // heads[1], ROWS)
    exact = as_float64(*leaves, sink)
    wanted, lse, _ = dense.attention(*exact[:3], counts, exact[3], None, softcap)
    wanted = torch.autograd.grad((wanted, lse), exact, [t.double().cpu() for t in upstream])
    for f, w in zip(found, wanted):
        check_close(f, w, factor=8.0)


@pytest.mark.parametrize("heads", [64, 130])
@pytest.mark.parametrize("deterministic", [False, True])
def test_latents(heads, deterministic):
    """One row of 576 is the key, and its first 512 columns are the value."""
    leaves = q, rows = inputs(rows_q=40, heads=(heads, 1), dim=576)[:2]
    sink = torch.randn(2, heads, device="cuda", requires_grad=True)
    lists = key_lists()[:40, :1].contiguous()

    def step():
        out, meta = flex_flash_attn_func(
            q, rows, rows[..., :512], index_sparse_indices=lists, sink=sink,
            deterministic=deterministic,
        )  # fmt: skip
        upstream = torch.ones_like(out), torch.ones_like(meta.lse)
        return out, *torch.autograd.grad((out, meta.lse), (*leaves, sink), upstream)

    found = step()
    counts = counts_of_lists(lists.cpu(), heads, ROWS)
    exact = as_float64(*leaves, sink)
    out, lse, _ = dense.attention(*exact[:2], exact[1][..., :512], counts, exact[2])
    wanted = torch.autograd.grad((out, lse), exact, [torch.ones_like(t) for t in (out, lse)])
    for f, w in zip(found, (out, *wanted)):
        check_close(f, w, factor=8.0)
    if deterministic:
        assert all(torch.equal(f, w) for f, w in zip(step(), found))


def test_latents_that_are_not_taken():
    q, k, v = (t.detach() for t in inputs(heads=(8, 1), dim=576))
    lists = key_lists()[:, :1].contiguous()
    with pytest.raises(ValueError, match="v is apart from k; allowed"):
        flex_flash_attn_func(q, k, v[..., :512].contiguous(), index_sparse_indices=lists)
    k.requires_grad_()
    with pytest.raises(ValueError, match="v is no view of k for autograd; allowed"):
        flex_flash_attn_func(q, k, k.detach()[..., :512], index_sparse_indices=lists)


def test_a_captured_backward_follows_the_lists_of_keys():
    leaves = inputs()
    lists = key_lists()
    upstream = torch.randn_like(leaves[0])

    def step():
        out, _ = flex_flash_attn_func(*leaves, index_sparse_indices=lists)
        return torch.autograd.grad(out, leaves, upstream)

    graph, found = capture(step)
    for seed in range(3):
        lists.copy_(key_lists(seed))
        graph.replay()
        for f, w in zip(found, step()):
            check_close(f, w.detach().double().cpu())


def test_what_kernels_do_not_take_is_refused_by_name():
    q, k, v = (t.detach() for t in inputs(dim=192))
    with pytest.raises(ValueError, match="192; allowed: multiples of 8 from 8 to 128, or 576"):
        flex_flash_attn_func(q, k, v, index_sparse_indices=key_lists())


def test_deterministic_gradients_repeat():
    leaves, lists = inputs(), key_lists()

    def step():
        out, _ = flex_flash_attn_func(*leaves, index_sparse_indices=lists, deterministic=True)
        return torch.autograd.grad(out, leaves, torch.ones_like(out))

    wanted = step()
    for _ in range(5):
        assert all(torch.equal(f, w) for f, w in zip(step(), wanted))
