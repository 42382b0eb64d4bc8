# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from magi_attention.comm.primitive.grpcoll import group_cast, group_reduce
from magi_attention.functional.utils import correct_attn_out_lse
from pipeline_cases import seeded
from ranks import over, refuses

HEADS, DIM = 2, 3


def random_traffic(seed: int, size: int):
    """Per rank: sizes of its splits and the ranks that each goes to (own rank and none too)."""
    generator = random.Random(seed)
    sizes = [[generator.randrange(4) for _ in range(5)] for _ in range(size)]
    targets = [
        [sorted(generator.sample(range(size), generator.randint(0, size))) for _ in range(5)]
        for _ in range(size)
    ]
    return sizes, targets


def received(sizes, targets, rank: int):
    """(source, split) of what a rank gets, in an order that mixes sources."""
    return [
        (source, split)
        for split in range(5)
        for source in range(len(sizes))
        if rank in targets[source][split]
    ]


def rows_of(sizes, rank: int, scale: float) -> torch.Tensor:
    count = sum(sizes[rank])
    values = torch.arange(count * HEADS * DIM, dtype=torch.float64).reshape(count, HEADS, DIM)
    return scale * (values + 1000 * rank)


def split_of(tensor, sizes, index: int):
    begin = sum(sizes[:index])
    return tensor[begin : begin + sizes[index]]


def casts(group, seed: int) -> None:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    sizes, targets = random_traffic(seed, size)
    incoming = received(sizes, targets, rank)
    given, lse = rows_of(sizes, rank, 1.0), rows_of(sizes, rank, 0.5)[:, :, 0].float()
    wanted_sizes = [sizes[source][split] for source, split in incoming]
    sources = [source for source, _ in incoming]
    wanted = [split_of(rows_of(sizes, s, 1.0), sizes[s], i) for s, i in incoming]
    wanted = torch.cat([given[:0], *wanted])
    arguments = (sizes[rank], wanted_sizes, targets[rank], sources, group)
    found = group_cast(given, None, *arguments).wait_post_process()
    assert torch.equal(found, wanted)
    output = torch.empty_like(wanted)
    work = group_cast(given, output, *arguments, async_op=True)
    assert work.wait_post_process(output) is output and torch.equal(output, wanted)
    pairs = group_cast(given, None, *arguments, cast_lse=True, input_lse=lse)
    found, found_lse = pairs.wait_post_process()
    assert torch.equal(found, wanted) and found_lse.shape == (wanted.shape[0], HEADS)
    width = max([1, *map(len, targets[rank])])
    padded = [row + [-1] * (width - len(row)) for row in targets[rank]]
    as_tensors = tuple(map(torch.tensor, (sizes[rank], wanted_sizes, padded, sources)))
    found = group_cast(given, None, *(t.long() for t in as_tensors), group)
    assert torch.equal(found.wait_post_process(), wanted)


def reduces(group, seed: int) -> None:
    """Transposed: what a rank got by the cast goes back, and the owner combines it."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    sizes, targets = random_traffic(seed, size)
    incoming = received(sizes, targets, rank)
    partial_sizes = [sizes[source][split] for source, split in incoming]
    held = rows_of(sizes, rank, 1.0)
    parts = [(rank + 1.0) * split_of(rows_of(sizes, s, 1.0), sizes[s], i) for s, i in incoming]
    partial = torch.cat([held[:0], *parts])
    arguments = (partial_sizes, sizes[rank], [s for s, _ in incoming], targets[rank], group)
    of_row = [ranks for ranks, count in zip(targets[rank], sizes[rank]) for _ in range(count)]
    factors = torch.tensor([sum(r + 1.0 for r in ranks) for ranks in of_row])
    factors = factors.double()[:, None, None]
    counts = torch.tensor([len(ranks) for ranks in of_row]).double()[:, None, None]
    plain = rows_of(sizes, rank, 1.0)
    found = group_reduce(partial, None, *arguments).wait_post_process()
    assert torch.allclose(found, plain * factors)
    output = held.clone()
    work = group_reduce(partial, output, *arguments, async_op=True)
    assert work.wait_post_process(output) is output
    assert torch.allclose(output, plain * (factors + 1))
    output = held.clone()
    group_reduce(partial, output, *arguments, acc_reduce=False)
    assert torch.allclose(output, plain * factors)
    output = held.clone()
    group_reduce(partial, output, *arguments, reduce_op="avg")
    assert torch.allclose(output, plain * (factors + 1) / (counts + 1))
    output = held.float()
    group_reduce(partial.float(), output, *arguments, comm_dtype=torch.bfloat16)
    assert torch.allclose(output.double(), plain * (factors + 1), rtol=2e-2)


def reduces_softmax_results(group, seed: int) -> None:
    """reduce_op "lse": partials over disjoint keys, in rank order."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    rows = 6

    def partial_of(source: int):
        generator = seeded(100 * seed + source)
        out = torch.randn(rows, HEADS, DIM, generator=generator).double()
        lse = torch.randn(rows, HEADS, generator=generator).double()
        lse[source % rows] = -torch.inf
        out[source % rows] = 0
        return out, lse

    everyone = [list(range(size))] if rank == 0 else []
    own = [rows] if rank == 0 else []
    out, lse = partial_of(rank)
    work = group_reduce(
        out, None, [rows], own, [0], everyone, group, reduce_op="lse", input_lse=lse
    )
    found, found_lse = work.wait_post_process()
    if rank == 0:
        wanted, wanted_lse = partial_of(0)
        for source in range(1, size):
            wanted, wanted_lse = correct_attn_out_lse(wanted, wanted_lse, *partial_of(source))
        assert torch.allclose(found, wanted) and torch.allclose(found_lse, wanted_lse)
    else:
        assert found.shape[0] == 0


@over(2)
def test_bad_arguments(group):
    x = torch.zeros(4, 2)
    for arguments, error, pattern in (
        ((x, None, [3], [0], [[0]], [0], group), ValueError, "input_split_sizes adds up to 3"),
        ((x, None, [5, -1], [0], [[0]], [0], group), ValueError, r"input_split_sizes\[1\] is -1"),
        ((x, x[:1], [4], [2], [[0]], [0], group), ValueError, "output_split_sizes adds up to 2"),
        ((x, None, [4], [0], [[9]], [0], group), ValueError, "dst_indices holds rank 9"),
        ((x, None, [4], [0], [[-1]], [0], group), ValueError, "dst_indices holds rank -1"),
        ((x, None, [4], [0], [[0, 0]], [0], group), ValueError, "dst_indices holds .0, 0"),
        ((x, None, [4], [0], [[0], []], [0], group), ValueError, "dst_indices has 2 entries"),
        ((x, None, [4], [0], [[0]], [0, 0], group), ValueError, "src_index has 2 entries"),
        ((x, None, [4], [0], [[0]], [0], "world"), TypeError, "group is a str"),
    ):
        refuses(lambda: group_cast(*arguments), error, pattern)
    good = (x, None, [4], [4], [0], [[0]], group)
    refuses(lambda: group_reduce(*good, reduce_op="max"), ValueError, "reduce_op is 'max'")
    refuses(lambda: group_reduce(*good, reduce_op="lse"), ValueError, "input_lse is None")


COLLECTIVES = pytest.mark.parametrize("case", [casts, reduces, reduces_softmax_results])


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
@COLLECTIVES
def test_collectives(ranks, size, seed, case):
    ranks.run(size, case, seed)
