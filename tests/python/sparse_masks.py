# SPDX-License-Identifier: Apache-2.0
"""Random sparse masks against float64: sparse_masks.py [--cases N] [--seed N] [--device cuda]

In parts: --processes N works at once, --seconds N ends a run, and --tally FILE keeps how many have
agreed so far, from which the next run goes on.

Each case is attention under lists of keys, lists of blocks or a mask of blocks, forward and
backward, judged by float64 results. 16-bit results may be twice as far off as a plain computation
that rounds inputs, weights, gradients of scores and results to 16 bits, and one unit in the last
place more. Where there are few rows its errors may be small by chance: so dq and dk may also be off
by what rounding of out, which the backward reads, can add to them. Half of the cases are in
deterministic mode: these run twice, and results must have the same bits.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import dense
from magi_attention.functional import block_sparse_attn_func, flex_flash_attn_func

LATENT = 576, 512  # the dims of keys whose first columns are the values
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
RESULTS = ("lse", "out", "dq", "dk", "dv")
PART = 20  # cases that a process has of a round


def counts_of_lists(lists, group, rows_k, sizes=(1, 1), rows_q=None):
    """Of lists [q_blocks, heads_kv, n] of blocks of keys; sizes: queries and keys of a block."""
    num_blocks = -(-rows_k // sizes[1])
    is_block = (lists >= 0) & (lists < num_blocks)
    places = torch.where(is_block, lists, num_blocks).long()
    counts = places.new_zeros(*lists.shape[:2], num_blocks + 1, dtype=torch.float64)
    counts.scatter_add_(2, places, places.new_ones(lists.shape, dtype=torch.float64))
    return counts_of_blocks(counts[..., :num_blocks].transpose(0, 1), group, sizes, rows_q, rows_k)


def counts_of_blocks(blocks, group, sizes, rows_q, rows_k):
    """Of how often each pair of blocks [heads_kv, q_blocks, k_blocks] is seen."""
    rows = blocks.double().repeat_interleave(sizes[0], 1).repeat_interleave(sizes[1], 2)
    return rows[:, :rows_q, :rows_k].repeat_interleave(group, 0)


def below_diagonal(rows_q, rows_k):
    return torch.arange(rows_k)[None] <= torch.arange(rows_q)[:, None] + rows_k - rows_q


def plain(q, k, v, counts, upstream):
    """out, dq, dk and dv as a plain computation in q's type gives them, by the formulas."""
    dtype, heads_kv = q.dtype, k.shape[1]
    group, scale = q.shape[1] // heads_kv, q.shape[2] ** -0.5
    wide_k, wide_v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), wide_k) * scale + counts.log()
    blind = scores.isneginf().all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    rounded, dout = weights.to(dtype).double(), upstream.double()
    out = torch.einsum("hqk,khd->qhd", rounded, wide_v).to(dtype)
    delta = (dout * out.double()).sum(-1).T.unsqueeze(-1)
    dscores = weights * (torch.einsum("qhd,khd->hqk", dout, wide_v) - delta)
    dscores = dscores.to(dtype).double() * scale
    dq = torch.einsum("hqk,khd->qhd", dscores, wide_k)
    dk = torch.einsum("hqk,qhd->khd", dscores, q.double()).unflatten(1, (heads_kv, group)).sum(2)
    dv = torch.einsum("hqk,qhd->khd", rounded, dout).unflatten(1, (heads_kv, group)).sum(2)
    if (k.shape[2], v.shape[2]) == LATENT:
        dk[..., : v.shape[2]] += dv
    return [t.to(dtype) for t in (out, dq, dk, dv)]


def noise_of_out(q, k, v, counts, upstream):
    """By how much dq and dk may be off as out was rounded to q's type; out and dv: nothing."""
    heads_kv, scale = k.shape[1], q.shape[2] ** -0.5
    group = q.shape[1] // heads_kv
    half_ulp = torch.finfo(q.dtype).eps / 2
    q, upstream = q.double(), upstream.double()
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale + counts.log()
    weights = scores.softmax(-1).nan_to_num(0.0)
    out = torch.einsum("hqk,khd->qhd", weights, v)
    delta = (upstream * out).abs().sum(-1).T.unsqueeze(-1) * half_ulp * scale
    dq = (delta * torch.einsum("hqk,khd->hqd", weights, k).abs()).amax() if q.numel() else 0.0
    dk = torch.einsum("hqk,qhd->khd", weights * delta, q.abs()).unflatten(1, (heads_kv, group))
    return [0.0, float(dq), largest(dk.sum(2)), 0.0]


@dataclass
class Case:
    name: str
    call: Callable[..., Any]  # of q, k, v and options
    counts: torch.Tensor
    heads: tuple[int, int]
    dims: tuple[int, int]
    dtype: torch.dtype

    def qkv(self, leaves):
        """Leaves with the values, which are columns of the keys where there are two."""
        return leaves if len(leaves) == 3 else (*leaves, leaves[1][..., : self.dims[1]])

    @property
    def is_wide(self) -> bool:
        return self.dtype in (torch.float64, torch.float32)


def random_lists(generator: random.Random, shape, num_blocks):
    """Entries in any order: none, several times, outside; some lists are empty."""
    least, most = (-2, num_blocks + 1) if generator.random() < 0.3 else (-1, num_blocks - 1)
    lists = torch.randint(least, most + 1, shape, dtype=torch.int32)
    return lists.masked_fill(torch.rand(shape[:2])[..., None] < 0.1, -1)


def random_case(generator: random.Random, on_gpu: bool = False) -> Case:
    torch.manual_seed(generator.randrange(1 << 30))
    heads_kv = generator.choice((1, 1, 2, 3))
    group = generator.choice((1, 2, 4, 5))
    rows_q, rows_k = generator.randint(1, 90), generator.randint(1, 120)
    sizes = generator.choice((1, 2, 16, 17, 32)), generator.choice((1, 3, 16, 20, 64))
    if on_gpu and generator.random() < 0.5:  # what its kernels for blocks take
        rows_q, rows_k = generator.randint(1, 300), generator.randint(1, 300)
        sizes = generator.choice((16, 64, 128)), generator.choice((16, 32, 64, 96, 128))
    num_q, num_k = -(-rows_q // sizes[0]), -(-rows_k // sizes[1])
    is_causal = generator.random() < 0.4
    kind = generator.choice(("keys", "blocks", "lists", "mask", "shared"))
    entries = generator.choice((0, 1, 4, 30))
    if kind in ("keys", "blocks"):
        sizes = (1, 1 if kind == "keys" else sizes[1])
        lists = random_lists(generator, (rows_q, heads_kv, entries), -(-rows_k // sizes[1]))
        counts = counts_of_lists(lists, group, rows_k, sizes, rows_q)

        def call(q, k, v, **options):
            placed = lists.to(q.device)
            return flex_flash_attn_func(
                q, k, v, index_sparse_indices=placed, sparse_k_block_size=sizes[1], **options
            )

    else:
        made: dict[str, Any] = dict(
            q_block_size=sizes[0], k_block_size=sizes[1], is_causal=is_causal
        )
        if kind == "lists":
            lists = random_lists(generator, (num_q, heads_kv, entries), num_k)
            counts = counts_of_lists(lists, group, rows_k, sizes, rows_q)
            made["block_lists"] = lists
        else:
            mask = torch.rand(1 if kind == "shared" else heads_kv, num_q, num_k) < 0.4
            expanded = mask.expand(heads_kv, -1, -1)
            counts = counts_of_blocks(expanded, group, sizes, rows_q, rows_k)
            made["block_mask"] = mask
        if is_causal:
            counts = counts * below_diagonal(rows_q, rows_k)

        def call(q, k, v, **options):
            placed = {n: t.to(q.device) if torch.is_tensor(t) else t for n, t in made.items()}
            return block_sparse_attn_func(q, k, v, **placed, **options)

    dims = (generator.choice((4, 16, 24)), generator.choice((8, 20)))
    if on_gpu:
        dims = generator.choice(((64, 64), (128, 128)))
    dtype = generator.choice(DTYPES[2:] if on_gpu else DTYPES)
    if on_gpu and kind in ("keys", "blocks") and heads_kv == 1 and generator.random() < 0.5:
        dims, dtype = LATENT, torch.bfloat16
    heads = heads_kv * group, heads_kv
    name = f"{kind}, rows {rows_q}:{rows_k}, heads {heads}, blocks {sizes}, causal {is_causal}"
    return Case(f"{name}, {dims}, {dtype}", call, counts, heads, dims, dtype)


def inputs_of(case: Case, device: str):
    rows_q, rows_k = case.counts.shape[1:]
    (heads_q, heads_kv), (dim, dim_v) = case.heads, case.dims
    shapes = ((rows_q, heads_q, dim), (rows_k, heads_kv, dim), (rows_k, heads_kv, dim_v))
    count = 2 if case.dims == LATENT else 3
    return [torch.randn(shape).to(device, case.dtype).requires_grad_() for shape in shapes[:count]]


def wide_inputs(leaves):
    return [t.detach().cpu().double().requires_grad_() for t in leaves]


def check(case: Case, generator: random.Random, device: str = "cpu") -> None:
    """AssertionError with the case's name where a result is off."""
    leaves = inputs_of(case, device)
    options: dict[str, Any] = {}
    if case.is_wide and generator.random() < 0.5:
        options = {"softmax_scale": 0.3, "softcap": generator.choice((0.0, 3.0))}
        wide = torch.float64 if case.dtype == torch.float64 else torch.float32
        shape = generator.choice(((2, case.heads[0]), (case.counts.shape[1], 1, case.heads[0])))
        options["sink"] = torch.randn(shape, dtype=wide)
        options["sink_layout"] = "sh" if len(shape) == 2 else "ssh"
    options["deterministic"] = generator.random() < 0.5
    upstream = torch.randn(case.counts.shape[1], case.heads[0], case.dims[1])
    upstream = upstream.to(device, case.dtype)
    lse_found, *found = results(case, leaves, options, upstream)
    if options["deterministic"]:
        repeated = results(case, leaves, options, upstream)
        for name, one, other in zip(RESULTS, (lse_found, *found), repeated):
            assert torch.equal(one, other), f"{case.name}: {name} differs when it is repeated"
    exact = wide_inputs(leaves)
    sink = options.get("sink")
    wanted, lse, _ = dense.attention(
        *case.qkv(exact), case.counts, None if sink is None else sink.double(),
        options.get("softmax_scale"), options.get("softcap", 0.0),
    )  # fmt: skip
    truth = [wanted, *gradients(wanted, exact, upstream.cpu().double())]
    near_lse = torch.allclose(lse_found.cpu().double(), lse, 1e-4, 1e-5)
    assert near_lse, f"{case.name}: lse is off"
    allowed = [1e-9 if case.dtype == torch.float64 else 2e-4] * 4
    if not case.is_wide:
        given = [t.detach().cpu() for t in case.qkv(leaves)] + [case.counts, upstream.cpu()]
        noise = noise_of_out(*given)
        allowed = [2 * error(s, t) + n for s, t, n in zip(plain(*given), truth, noise)]
    for name, f, t, limit in zip(RESULTS[1:], found, truth, allowed):
        ulp = 0.0 if case.is_wide else torch.finfo(case.dtype).eps * max(1.0, largest(t))
        off = error(f, t)
        bound = (limit * max(1.0, largest(t)) if case.is_wide else limit) + ulp
        assert off <= bound, f"{case.name}: {name} is off by {off}; allowed: {bound}"


def results(case: Case, leaves, options: dict[str, Any], upstream) -> list[torch.Tensor]:
    """RESULTS of one call."""
    out, meta = case.call(*case.qkv(leaves), **options)
    return [meta.lse.detach(), out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def gradients(out, leaves, upstream):
    return torch.autograd.grad(out, leaves, upstream, materialize_grads=True)


def largest(tensor) -> float:
    return tensor.detach().abs().max().item() if tensor.numel() else 0.0


def error(found, wanted) -> float:
    assert found.shape == wanted.shape and not found.isnan().any()
    return largest(found.detach().cpu().double() - wanted.detach().double())


def check_seeds(seeds: range, device: str) -> int | None:
    """The first seed that fails, whose error is printed."""
    for seed in seeds:
        generator = random.Random(seed)
        try:
            check(random_case(generator, device == "cuda"), generator, device)
        except Exception as error:
            print(f"seed {seed} fails: {type(error).__name__}: {error}", flush=True)
            return seed
    return None


def read_tally(path: str | None, first: int) -> int:
    """How many cases from seed `first` on have agreed."""
    if path is None or not os.path.exists(path):
        return 0
    with open(path, encoding="utf-8") as file:
        tally = json.load(file)
    if tally["seed"] != first:
        raise SystemExit(f"--seed is {first}; allowed: {tally['seed']}, as in {path}")
    return tally["agreed"]


def write_tally(path: str | None, first: int, agreed: int) -> None:
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"seed": first, "agreed": agreed}, file)


def run(given: argparse.Namespace, agreed: int) -> int:
    """Goes on behind the cases that agreed, in rounds of which every process has a part, until the
    cases or the seconds are used up. Returns how many agree in all; SystemExit where one does not.
    """
    end = time.monotonic() + given.seconds
    spawning = multiprocessing.get_context("spawn")
    with spawning.Pool(given.processes, torch.set_num_threads, (1,)) as pool:
        while agreed < given.cases and time.monotonic() < end:
            count = min(PART * given.processes, given.cases - agreed)
            first = given.seed + agreed
            parts = [
                (range(begin, min(begin + PART, first + count)), given.device)
                for begin in range(first, first + count, PART)
            ]
            if any(seed is not None for seed in pool.starmap(check_seeds, parts)):
                raise SystemExit(f"{agreed} cases from seed {given.seed} on agreed before")
            agreed += count
            write_tally(given.tally, given.seed, agreed)
    return agreed


def main() -> None:
    parser = argparse.ArgumentParser(description="random sparse masks against float64")
    parser.add_argument("--cases", type=int, default=20000, help="in all, those of a tally too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--tally", help="a file that keeps how many cases have agreed")
    given = parser.parse_args()
    agreed = run(given, read_tally(given.tally, given.seed))
    print(f"{agreed} of {given.cases} cases from seed {given.seed} on agree, no other was tried")


if __name__ == "__main__":
    main()
