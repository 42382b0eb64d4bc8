# SPDX-License-Identifier: Apache-2.0
"""Sparse attention on 1 to 4 ranks over gloo, against dense float64 attention."""

from __future__ import annotations

import os
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import pad

import dense
from magi_attention import api, masks
from magi_attention.compat.keys.lookup import runtime_of
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.errors import CommError
from magi_attention.functional import _sparse, sparse_dist_attn
from magi_attention.plan import Plan
from pipeline_cases import Case, make_key
from ranks import over, own_group, refuses
from sparse_masks import below_diagonal, counts_of_blocks, counts_of_lists

HEADS, DIM = (4, 2), 8


def tensors(rows: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, HEADS[0], DIM), (rows, HEADS[1], DIM), (rows, HEADS[1], DIM))
    made = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return [t.requires_grad_() for t in made]


def bound_under(mask, group, uneven=False, heads_kv=HEADS[1], dim=DIM, layout="permuted"):
    dispatch = DispatchConfig(chunk_size=16, uneven_shard=uneven, layout=layout)
    config = DistAttnConfig(dispatch_config=dispatch)
    plan = Plan.from_mask(
        mask, cp_size=group.size(), num_heads_q=HEADS[0], num_heads_kv=heads_kv, head_dim=dim,
        head_dim_v=DIM, config=config,
    )  # fmt: skip
    return plan.bind(group)


def with_values(leaves):
    """q, k and v, which are columns of k where there are two."""
    return leaves if len(leaves) == 3 else (*leaves, leaves[1][..., :DIM])


def check_results(bound, call, leaves, counts):
    """call(local q, k, v) -> out, meta against dense attention, with gradients of all leaves."""
    local = [bound.dispatch(x) for x in leaves]
    out, meta = call(*with_values(local))
    shape = *leaves[0].shape[:2], DIM
    upstream = torch.randn(shape, dtype=torch.float64, generator=torch.Generator())
    (out * bound.dispatch(upstream)).sum().backward()
    found = [bound.undispatch(out.detach()), bound.undispatch(meta.lse.detach())]
    found += [leaf.grad for leaf in leaves]
    exact = [leaf.detach().requires_grad_() for leaf in leaves]
    wanted, lse, _ = dense.attention(*with_values(exact), counts)
    gradients = torch.autograd.grad(wanted, exact, upstream, materialize_grads=True)
    for name, f, w in zip(("out", "lse", "dq", "dk", "dv"), found, (wanted, lse, *gradients)):
        w = w.detach()
        assert torch.equal(f.isinf(), w.isinf()), name
        error = (f - w)[w.isfinite()].abs().max().item()
        assert error < 1e-9, f"{name} is off by {error}"


def check_chosen(bound, counts, sizes: tuple[int, int], **chosen) -> None:
    """Sparse attention by what is chosen, all of which comes; sizes: of blocks of queries, keys."""
    chosen |= {"q_block_size": sizes[0], "sparse_k_block_size": sizes[1]}

    def call(q, k, v):
        out, meta = bound.calc_sparse_attn(q, k, v, **chosen)
        assert meta.error_word.tolist() == [0, -1]
        return out, meta

    check_results(bound, call, tensors(bound.total_seqlen), counts)


def window_of(rows: int, left: int):
    return masks.from_window(rows, left, 0)


def lists_inside(rows: int, left: int, entries: int, block: int, seed: int = 1):
    """Random blocks of keys of the last `left` of each query, some of them none."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.arange(rows).view(-1, 1, 1)
    back = torch.randint(0, left, (rows, HEADS[1], entries), generator=generator)
    lists = ((row - back) // block).int()
    return lists.masked_fill(row - back < 0, -1)


@over(1, 2, 3, 4)
@pytest.mark.parametrize("block, uneven", [(1, False), (7, False), (1, True)])
def test_lists_inside_a_window(group, block, uneven, rows: int = 150):
    """Lists inside of a window, which alone travels."""
    left = 40
    bound = bound_under(window_of(rows, left + block - 1), group, uneven)
    lists = lists_inside(rows, left, 6, block)
    is_whole = (lists.long() + 1) * block <= torch.arange(1, rows + 1).view(-1, 1, 1)
    lists = lists.masked_fill(~is_whole, -1)
    counts = counts_of_lists(lists, HEADS[0] // HEADS[1], rows, (1, block), rows)
    local = bound.dispatch(lists.contiguous(), pad_value=-1)
    check_chosen(bound, counts, (1, block), index_sparse_indices=local)
    if group.size() == 4 and block == 1:
        assert 0 < bound.needed_keys.num_received < rows - bound.local_rows


@over(1, 2, 4)
def test_keys_that_did_not_come(group, rows: int = 150):
    """A list that names them gives NaN in its heads alone, and is told."""
    bound = bound_under(window_of(rows, 20), group)
    found = bound.needed_keys.blocks(bound.local_rows, 1, torch.device("cpu"))
    absent = (found.places[2:-1] < 0).nonzero().flatten()
    own = torch.arange(rows).view(-1, 1, 1).expand(-1, HEADS[1], 1).int().contiguous()
    lists = bound.dispatch(own, pad_value=-1)
    lists = torch.cat((lists, torch.full_like(lists, -1)), dim=2)
    local = [bound.dispatch(x.detach()) for x in tensors(rows)]
    wanted, _ = bound.calc_sparse_attn(*local, lists)
    lists[2, 1, 1], lists[3, 0, 1] = rows, -9
    if absent.numel():
        lists[5, 1, 1] = absent[0]
    out, meta = bound.calc_sparse_attn(*local, lists)
    bad = 3 if absent.numel() else 2
    assert meta.error_word.tolist() == [bad, (2 * 2 + 1) * 2 + 1]
    if absent.numel():
        assert out[5, 2:].isnan().all() and meta.lse[5, 2:].isnan().all()
        out[5, 2:] = wanted[5, 2:]
    assert torch.equal(out, wanted)
    os.environ["MAGI_ATTENTION_SANITY_CHECK"] = "1"
    refuses(lambda: bound.calc_sparse_attn(*local, lists), ValueError, f"{bad} entries")


@over(1, 2)
def test_tensors_of_other_shapes(group, rows: int = 150):
    """The whole sequence in place of a rank's rows, keys of other rows, heads that are not the
    plan's; a block beyond the sequence is all of it.
    """
    bound = bound_under(window_of(rows, rows), group)
    whole = [x.detach() for x in tensors(rows)]
    local = [bound.dispatch(x) for x in whole]
    lists = torch.zeros(bound.local_rows, HEADS[1], 1, dtype=torch.int32)
    q, k, v = local
    wrong = [(q, k[:-1], v[:-1]), (q, k, v[:, :1]), (q[:, : HEADS[1]], k, v)]
    if group.size() > 1:
        wrong.append(whole)
    for given in wrong:
        own = lists[: len(given[0])]
        refuses(lambda: bound.calc_sparse_attn(*given, own), ValueError, "allowed: ")
    out, _ = bound.calc_sparse_attn(*local, lists, 1 << 29)
    wanted, _ = bound.calc_sparse_attn(*local, lists, rows)
    assert torch.equal(out.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(out.isnan(), wanted.isnan())


@over(1, 2, 4)
@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_that_all_ranks_know(group, is_causal: bool, rows: int = 150):
    """A mask of blocks that every rank knows plans like any other; for kv heads that differ the
    union is planned, with lists inside.
    """
    sizes, generator = (16, 32), torch.Generator().manual_seed(3)
    num = -(-rows // sizes[0]), -(-rows // sizes[1])
    both = torch.rand(HEADS[1], *num, generator=generator) < 0.4
    both[:, :, 0] = True
    union = masks.from_blocks(both.any(0), *sizes, rows, rows, is_causal=is_causal)
    bound = bound_under(union, group)
    shown = masks.to_matrix(union).double().expand(HEADS[0], -1, -1)
    check_results(bound, bound.calc_attn, tensors(rows), shown)
    lists = torch.where(both, torch.arange(num[1]), -1).int().transpose(0, 1)
    by_row = lists.repeat_interleave(sizes[0], 0)[:rows].contiguous()
    counts = counts_of_lists(by_row, HEADS[0] // HEADS[1], rows, (1, sizes[1]), rows)
    if is_causal:
        return
    local = bound.dispatch(by_row, pad_value=-1)
    check_chosen(bound, counts, (1, sizes[1]), index_sparse_indices=local)


def masks_of_blocks(sizes: tuple[int, int], rows: int) -> torch.Tensor:
    """Random blocks for each kv head, of those that end before a block of queries begins."""
    first = torch.arange(0, rows, sizes[0]).view(-1, 1)
    end = torch.arange(sizes[1], rows + sizes[1], sizes[1]).clamp(max=rows)
    shape, generator = (HEADS[1], len(first), len(end)), torch.Generator().manual_seed(3)
    return (torch.rand(shape, generator=generator) < 0.5) & (end <= first)


def local_blocks(bound, visible: torch.Tensor, size: int) -> torch.Tensor:
    """A rank's blocks of queries of a mask of all; those of padding see nothing."""
    by_row = visible.transpose(0, 1).repeat_interleave(size, 0)[: bound.total_seqlen]
    return bound.dispatch(by_row, pad_value=0)[::size].transpose(0, 1).contiguous()


def as_lists(visible: torch.Tensor) -> torch.Tensor:
    numbers = torch.arange(visible.shape[2], dtype=torch.int32)
    return torch.where(visible, numbers, -1).transpose(0, 1).contiguous()


@over(1, 2)
@pytest.mark.parametrize("sizes", [(16, 16), (8, 4), (16, 24), (1, 7), (4, 1)])
def test_blocks_of_queries(group, sizes: tuple[int, int], rows: int = 250):
    """Masks and lists, per kv head, that lie in blocks where they come, and that do not."""
    bound = bound_under(masks.from_cu_seqlens([0, rows]), group)
    visible = masks_of_blocks(sizes, rows)
    counts = counts_of_blocks(visible, HEADS[0] // HEADS[1], sizes, rows, rows).double()
    local = local_blocks(bound, visible, sizes[0])
    given = {"block_mask": local}, {"block_mask": lambda: local}
    for chosen in (*given, {"index_sparse_indices": as_lists(local)}):
        check_chosen(bound, counts, sizes, **chosen)


@over(1, 2)
@pytest.mark.parametrize("sizes", [(16, 16), (8, 4), (16, 1)])
def test_causal_blocks(group, sizes: tuple[int, int], rows: int = 250):
    """Blocks on the diagonal, which most queries see, are cut; those behind it count as none."""
    bound = bound_under(masks.from_cu_seqlens([0, rows]), group)
    visible = masks_of_blocks(sizes, rows)
    row_of = torch.arange(0, rows, sizes[0]).view(-1, 1)
    visible |= (torch.arange(visible.shape[2]) * sizes[1] - row_of).abs() < 2 * sizes[0]
    counts = counts_of_blocks(visible, HEADS[0] // HEADS[1], sizes, rows, rows).double()
    counts *= below_diagonal(rows, rows)
    local = local_blocks(bound, visible, sizes[0])
    for chosen in ({"block_mask": local}, {"index_sparse_indices": as_lists(local)}):
        check_chosen(bound, counts, sizes, **chosen, is_causal=True)


@over(2)
def test_blocks_that_did_not_come(group, rows: int = 250):
    """Whole, or in part: the block of queries gives NaN in the heads that see it, and is told. What
    nobody chose may hold NaN.
    """
    sizes = 8, 12
    bound = bound_under(window_of(rows, 20), group)
    blocks = bound.needed_keys.blocks(bound.local_rows, sizes[1], torch.device("cpu"))
    num_blocks = -(-rows // sizes[1])
    visible = torch.zeros(HEADS[1], -(-bound.local_rows // sizes[0]), num_blocks).bool()
    here, absent = blocks.ids[0], (blocks.places[2:-1] < 0).nonzero().flatten()
    visible[:, :, here] = True
    chosen = [None] * group.size()
    dist.all_gather_object(chosen, here, group)
    q, k, v = (bound.dispatch(x.detach()) for x in tensors(rows))
    is_unseen = ~torch.isin(bound.rows.position_ids() // sizes[1], torch.stack(chosen))
    k[is_unseen], v[is_unseen] = float("nan"), float("nan")
    options = {"sparse_k_block_size": sizes[1], "q_block_size": sizes[0]}
    wanted, _ = bound.calc_sparse_attn(q, k, v, block_mask=visible, **options)
    assert wanted.isfinite().all()
    visible[1, 2, absent[-1]] = True
    place = (visible.shape[1] + 2) * num_blocks + absent[-1]
    for chosen in ({"block_mask": visible}, {"index_sparse_indices": as_lists(visible)}):
        out, meta = bound.calc_sparse_attn(q, k, v, **chosen, **options)
        assert out[16:24, 2:].isnan().all() and meta.lse[16:24, 2:].isnan().all()
        out[16:24, 2:] = wanted[16:24, 2:]
        assert torch.equal(out, wanted)
        if "block_mask" not in chosen:
            place = (2 * HEADS[1] + 1) * num_blocks + absent[-1]
        assert meta.error_word.tolist() == [1, place]
    gradients = []
    for seen in (visible, visible & (torch.arange(visible.shape[1]) != 2).view(-1, 1)):
        leaves = [x.bfloat16().nan_to_num().requires_grad_() for x in (q, k, v)]
        out, _ = bound.calc_sparse_attn(*leaves, block_mask=seen, **options)
        out[:16].mul_(1)  # in place
        gradients.append(torch.autograd.grad(out[:24, 2:], leaves, torch.ones_like(out[:24, 2:])))
    assert all(torch.equal(x[:, 1:], y[:, 1:]) for x, y in zip(*gradients))
    os.environ["MAGI_ATTENTION_SANITY_CHECK"] = "1"
    call = partial(bound.calc_sparse_attn, q, k, v, block_mask=visible, **options)
    refuses(call, ValueError, "block_mask has 1 entries")


@over(2)
def test_blocks_on_two_ranks(group, rows: int = 250):
    """Queries of a block lie on one rank; one form is given; a function's error ends its rank."""
    bound = bound_under(masks.from_cu_seqlens([0, rows]), group)
    q, k, v = (bound.dispatch(x.detach()) for x in tensors(rows))
    visible = torch.zeros(1, -(-bound.local_rows // 12), -(-rows // 16)).bool()
    options = {"sparse_k_block_size": 16, "q_block_size": 12}
    for given, text in (
        ({"block_mask": visible}, "q_block_size is 12; allowed: divisors of 16, the plan's chunk"),
        ({"block_mask": visible[:, :1], "q_block_size": 16}, r"block_mask has shape \[1, 1, 16\]"),
        ({}, "neither of them is given"),
        (
            dict(block_mask=visible, q_block_size=8, sparse_k_block_size=12, is_causal=True),
            "sparse_k_block_size is 12; allowed: divisors of 16",
        ),
        ({"index_sparse_indices": visible, "q_block_size": 1, "is_causal": True}, "single queries"),
        ({"block_mask": visible, "index_sparse_indices": visible}, "both are given"),
        ({"block_mask": lambda: visible, "q_block_size": 16}, "block_mask has shape"),
    ):
        call = partial(bound.calc_sparse_attn, q, k, v, **(options | given))
        refuses(call, ValueError, text)
    bound = bound_under(masks.from_cu_seqlens([0, 128, 256]), group)
    assert not bound.needed_keys.moves_rows
    q, k, v = (bound.dispatch(x.detach()) for x in tensors(256))
    visible = torch.zeros(1, -(-bound.local_rows // 12), 16).bool()
    call = partial(bound.calc_sparse_attn, q, k, v, block_mask=visible, **options)
    refuses(call, ValueError, "q_block_size is 12; allowed: divisors of 16")


def latents(group, rows: int, layout: str = "permuted"):
    """A plan, local lists, all counts, q and keys that hold their values."""
    mask = masks.from_cu_seqlens([0, rows])
    bound = bound_under(mask, group, heads_kv=1, dim=DIM + 4, layout=layout)
    lists = lists_inside(rows, rows, 5, 1)[:, :1].contiguous()
    counts = counts_of_lists(lists, HEADS[0], rows)
    q, k, _ = (torch.cat((x, x[..., :4] + 1), 2).detach() for x in tensors(rows))
    return bound, bound.dispatch(lists, pad_value=-1), counts, (q, k[:, :1])


@over(1, 2, 4)
def test_latents(group):
    """Keys that hold their values travel once and have one gradient, as a GPU's kernel asks."""
    bound, lists, counts, qk = latents(group, 150)
    if group.size() == 2:  # one of two ranks has values apart
        local = with_values([bound.dispatch(x) for x in qk])
        local = (*local[:2], local[2].clone() if bound.rank else local[2])
        text = "v is a view of k: rank 0 has True, rank 1 has False"
        refuses(lambda: bound.calc_sparse_attn(*local, lists), CommError, text)
    moved = mock.Mock(side_effect=bound.needed_keys.fetched)
    of_check = mock.patch.object(sparse_dist_attn, "is_latent", lambda q, v: True)
    is_latent = mock.patch.object(_sparse, "is_latent", lambda q, v: True)
    with of_check, is_latent, mock.patch.object(bound.needed_keys, "fetched", moved):
        for given in (lists, lambda: lists):
            leaves = [x.clone().requires_grad_() for x in qk]
            call = partial(bound.calc_sparse_attn, index_sparse_indices=given)
            check_results(bound, call, leaves, counts)
        q, k = map(bound.dispatch, leaves)
        refuses(lambda: call(q, k, k[..., :DIM].clone()), ValueError, "v is no view of k")
    widths = [len(tensors) for (tensors, _), _ in moved.call_args_list]
    assert widths == [1, 1] * bound.needed_keys.moves_rows


@over(1, 2)
def test_latents_under_a_plan_of_keys_and_values(group):
    """They have head dims of their own. Ranks hear of one that calls with others."""
    _, lists, counts, qk = latents(group, 150)
    bound = bound_under(masks.from_cu_seqlens([0, 150]), own_group([*range(group.size())]))
    call = partial(bound.calc_sparse_attn, index_sparse_indices=lists)
    check_results(bound, call, [x.clone().requires_grad_() for x in qk], counts)
    if group.size() == 2:
        local = with_values([bound.dispatch(x) for x in (qk if bound.rank else tensors(150))])
        lists = lists.expand(-1, local[1].shape[1], -1)
        text = "heads of q, k: rank 0 has 4, 2, rank 1 has 4, 1"
        refuses(lambda: bound.calc_sparse_attn(*local, lists), CommError, text)


@over(2, 4)
def test_copies_of_few_rows(group):
    """In ranks of one row, and of none among 4, a copy of columns of k is a view."""
    bound, lists, counts, qk = latents(group, group.size() + 1, "contiguous")
    valid = bound.rows.num_valid

    def call(*qkv):
        out, meta = bound.calc_sparse_attn(*(x[:valid].contiguous() for x in (*qkv, lists)))
        missing = 0, 0, 0, bound.local_rows - valid
        meta.lse = pad(meta.lse, missing)
        return pad(out, (0, 0, *missing)), meta

    check_results(bound, call, [x.clone().requires_grad_() for x in qk], counts)


@over(1, 3)
def test_by_a_key(group, rows: int = 100):
    """api.calc_sparse_attn gives what the plan of the key's mask gives."""
    key = make_key(dense.masks(rows)["causal"], Case(rows=rows, heads=HEADS, head_dim=DIM), group)
    lists = lists_inside(rows, rows, 5, 1)
    counts = counts_of_lists(lists, HEADS[0] // HEADS[1], rows)
    local = api.dispatch(lists, key, pad_value=-1)

    def call(q, k, v):
        return api.calc_sparse_attn(q, k, v, key, local)

    check_results(runtime_of(key).bound, call, tensors(rows), counts)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1), (16, 8), (7, 30), (50, 64)])
def test_masks_of_blocks(sizes, is_causal):
    rows = 50, 64
    num = -(-rows[0] // sizes[0]), -(-rows[1] // sizes[1])
    for share in (0.0, 0.3, 1.0):
        visible = torch.rand(num, generator=torch.Generator().manual_seed(5)) < share
        found = masks.to_matrix(masks.from_blocks(visible, *sizes, *rows, is_causal=is_causal))
        wanted = counts_of_blocks(visible[None], 1, sizes, *rows)[0].bool()
        assert torch.equal(found, wanted & below_diagonal(*rows) if is_causal else wanted)


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ((torch.zeros(2, 2), 4, 4, 8, 8), TypeError, "visible is torch.float32"),
        (([True], 4, 4, 8, 8), TypeError, "visible is list"),
        ((torch.zeros(2, 2).bool(), 4, 4, 8, 9), ValueError, r"\[2, 2\]; allowed: \[2, 3\]"),
        ((torch.zeros(3, 2, 2).bool(), 4, 4, 8, 8), ValueError, r"2\]; try: visible.any\(0\)"),
        ((torch.zeros(2, 2).bool(), 0, 4, 8, 8), ValueError, "q_block_size is 0"),
    ],
)
def test_bad_masks_of_blocks(arguments, error, match):
    with pytest.raises(error, match=match):
        masks.from_blocks(*arguments)
