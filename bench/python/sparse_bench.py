#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times attention under random masks of blocks on a GPU, forward and backward, beside FlexAttention
(compiled, its BlockMask given), FlashAttention-4 (its lists of blocks given) and the same masks as
ranges: sparse_bench.py [--out FILE]

Each kv head has a mask of its own; every block of queries sees as many random blocks of keys or,
in causal masks as MoBA has them, the best by random scores.
Rates are 4 (backward: 10) * visible pairs * heads * dim per second. A round times every side once,
in an order drawn anew, by a burst of calls between two events; figures are medians over the rounds.
Rates are those of the library by itself. The results of all sides are compared first.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass

import torch

from magi_attention.functional import block_sparse_attn_func

SHARE = 0.125


@dataclass
class Shape:
    """rows of q and k, query and kv heads, queries and keys of a block, visible blocks of each
    block of queries, and whether FlexAttention takes such blocks: multiples of 128 x 128 on this
    GPU. FlashAttention-4 takes blocks of 64, too. is_causal: a block of queries sees its own block
    of keys, up to the diagonal, and the best of those before it.
    """

    name: str
    rows: int
    heads: tuple[int, int]
    blocks: tuple[int, int]
    num_visible: int
    has_flex: bool = False
    is_causal: bool = False

    def num_blocks(self) -> tuple[int, int]:
        return -(-self.rows // self.blocks[0]), -(-self.rows // self.blocks[1])

    def flop(self, dim: int) -> float:
        pairs = self.rows * self.num_visible * self.blocks[1]
        if self.is_causal:  # blocks are square, and the first ones of queries have fewer before
            size, few = self.blocks[0], self.num_visible
            pairs -= few * (few - 1) // 2 * size**2 + self.rows * (size - 1) // 2
        return 4.0 * pairs * self.heads[0] * dim


def shapes(rows: int) -> list[Shape]:
    return [
        Shape("block128", rows, (64, 8), (128, 128), int(rows / 128 * SHARE), True),
        Shape("block64", rows, (64, 8), (64, 64), int(rows / 64 * SHARE)),
        Shape("q16k64", rows, (64, 8), (16, 64), int(rows / 64 * SHARE)),
        Shape("block64.video", rows * 27 // 8, (8, 8), (64, 64), 64),
        Shape("moba", rows, (64, 8), (128, 128), 24, is_causal=True),
        Shape("moba12", rows, (64, 8), (128, 128), 12, is_causal=True),
        Shape("moba64", rows, (64, 8), (64, 64), 48, is_causal=True),
    ]


def random_mask(shape: Shape) -> torch.Tensor:
    num_q, num_k = shape.num_blocks()
    scores = torch.rand(shape.heads[1], num_q, num_k, device="cuda")
    if shape.is_causal:
        scores = (scores + 2 * torch.eye(num_q, device="cuda")).tril()
    chosen = scores.topk(shape.num_visible, dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(2, chosen, True) & (scores > 0)


def flex_side(q, k, v, mask: torch.Tensor, shape: Shape):
    """out of FlexAttention under the mask, [rows, heads, dim]."""
    import torch._functorch.config
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    torch._functorch.config.donated_buffer = False  # the backward is timed behind one forward
    mask = mask.repeat_interleave(shape.heads[0] // shape.heads[1], 0)[None]
    num = mask.sum(-1).to(torch.int32)
    order = mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    block_mask = BlockMask.from_kv_blocks(
        torch.zeros_like(num), order, num, order, BLOCK_SIZE=shape.blocks
    )
    compiled = torch.compile(flex_attention, dynamic=False)

    def call():
        views = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = compiled(*views, block_mask=block_mask, enable_gqa=True)
        return out[0].transpose(0, 1)

    return call


def fa4_side(q, k, v, mask: torch.Tensor, shape: Shape):
    """out of FlashAttention-4 under the mask, [rows, heads, dim]."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    from flash_attn.cute.interface import flash_attn_func

    mask = mask.repeat_interleave(shape.heads[0] // shape.heads[1], 0)

    def lists_of(visible: torch.Tensor) -> BlockSparseTensorsTorch:
        num = visible.sum(-1).to(torch.int32)[None]
        order = visible.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[None].int()
        none, nothing = torch.zeros_like(num), torch.zeros_like(order)
        return BlockSparseTensorsTorch(none, nothing, num, order, block_size=shape.blocks)

    lists = {
        "block_sparse_tensors": lists_of(mask),
        "block_sparse_tensors_bwd": lists_of(mask.transpose(1, 2).contiguous()),
    }

    def call():
        out = flash_attn_func(q[None], k[None], v[None], pack_gqa=False, **lists)
        return (out[0] if isinstance(out, tuple) else out)[0]

    return call


def range_side(q, k, v, mask: torch.Tensor, shape: Shape):
    """The library under the same mask as ranges, heads folded into rows, made outside of the call:
    what the kernels for ranges alone take.
    """
    from magi_attention.common._block_ranges import Blocks, folded_ranges, runs_of_mask
    from magi_attention.functional import flex_flash_attn_func
    from magi_attention.functional._sparse import fold_keys, fold_queries, unfold_queries

    blocks = Blocks(shape.rows, shape.rows, *shape.blocks)
    runs, missing = runs_of_mask(mask, None)
    ranges = folded_ranges(runs, blocks, torch.stack((missing, missing)))
    heads = shape.heads[1]
    given = ranges.q_ranges.cpu(), ranges.k_ranges.cpu(), ranges.types.cpu()

    def call():
        folded = fold_queries(q, heads), fold_keys(k), fold_keys(v)
        return unfold_queries(flex_flash_attn_func(*folded, *given)[0], heads)

    return call


def runs(name: str, call) -> bool:
    """Whether a call of a peer runs; where not, says why."""
    try:
        call()
    except Exception as error:  # compilers of peers raise what they like
        print(f"  {name} does not run: {type(error).__name__}: {error}", flush=True)
        return False
    return True


def sides_of(shape: Shape, dim: int, options) -> tuple[dict, tuple]:
    """Calls that give out by the name of their side, and the inputs, which need gradients."""
    inputs = [
        torch.randn(shape.rows, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for heads in (shape.heads[0], shape.heads[1], shape.heads[1])
    ]
    mask = random_mask(shape)
    sizes = {"q_block_size": shape.blocks[0], "k_block_size": shape.blocks[1]}
    sizes["is_causal"] = shape.is_causal
    sides = {"magi": lambda: block_sparse_attn_func(*inputs, mask, **sizes)[0]}
    if shape.is_causal:  # the others' masks are made of whole blocks
        return sides, tuple(inputs)
    if options.ranges:
        sides["ranges"] = range_side(*inputs, mask, shape)
    if options.flex and shape.has_flex:
        sides["flex"] = flex_side(*inputs, mask, shape)
    if options.fa4:
        sides["fa4"] = fa4_side(*inputs, mask, shape)
        if not runs("fa4", sides["fa4"]):
            del sides["fa4"]
    return sides, tuple(inputs)


def check(sides: dict, backward_sides: dict, inputs: tuple, upstream: torch.Tensor) -> None:
    """SystemExit where a side is off: bfloat16 gives about 2^-8 of the largest value."""
    results = {}
    for name, call in sides.items():
        out = call()
        results[name] = (out.detach(),)
        if name in backward_sides:
            results[name] += torch.autograd.grad(out, inputs, upstream)
    for name, found in results.items():
        for what, a, b in zip(("out", "dq", "dk", "dv"), found, results["magi"]):
            distance = ((a.float() - b.float()).abs().max() / b.float().abs().max()).item()
            print(f"  {name} {what}: {distance:.2e} of the largest value off", flush=True)
            if not distance < 0.03:
                raise SystemExit(f"{what} of {name} is {distance:.3g} off; allowed: 0.03")


def milliseconds(call, burst: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(burst):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / burst


def time_sides(sides: dict, rounds: int, generator: random.Random) -> dict[str, list[float]]:
    """Milliseconds of each side in each round."""
    bursts = {}
    for name, call in sides.items():
        call()
        bursts[name] = max(1, round(30.0 / max(milliseconds(call, 1), 0.1)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in generator.sample(list(sides), len(sides)):
            times[name].append(milliseconds(sides[name], bursts[name]))
    return times


def backward_calls(sides: dict, inputs: tuple, upstream: torch.Tensor) -> dict:
    """Calls of the gradients alone, each behind one forward."""
    outs = {name: call() for name, call in sides.items()}
    return {
        name: lambda out=out: torch.autograd.grad(out, inputs, upstream, retain_graph=True)
        for name, out in outs.items()
    }


def rows_of(name: str, calls: dict, flop: float, options, generator: random.Random) -> list[dict]:
    """The rate of the library by itself, then beside the other sides, which give ratios of the same
    rounds.
    """
    alone = time_sides({"magi": calls["magi"]}, options.rounds, generator)["magi"]
    rate = flop / 1e9 / statistics.median(alone)
    print(f"{name:28} {rate:7.1f} TFLOP/s, {min(alone):.3f} to {max(alone):.3f} ms", flush=True)
    found = [{"name": name, "value": round(rate, 1), "unit": "TFLOP/s"}]
    if len(calls) == 1:
        return found
    times = time_sides(calls, options.rounds, generator)
    for side, milli in times.items():
        ratio = statistics.median(m / o for m, o in zip(milli, times["magi"]))
        rate = flop / 1e9 / statistics.median(milli)
        print(f"  {side:26} {rate:7.1f} TFLOP/s, {ratio:.3f} of the time of magi", flush=True)
        if side != "magi":
            found.append({"name": f"{name}.over_{side}", "value": round(ratio, 3), "unit": "ratio"})
    return found


def measure(shape: Shape, options, generator: random.Random) -> list[dict]:
    sides, inputs = sides_of(shape, options.dim, options)
    upstream = torch.randn(shape.rows, shape.heads[0], options.dim, device="cuda").bfloat16()
    backward_sides = {}
    if options.backward:  # a peer may take the shape forward alone
        backward_sides = {
            name: call
            for name, call in sides.items()
            if name == "magi"
            or runs(
                f"{name} backward", lambda call=call: torch.autograd.grad(call(), inputs, upstream)
            )
        }
    check(sides, backward_sides, inputs, upstream)
    flop = shape.flop(options.dim)
    forward = {name: torch.no_grad()(call) for name, call in sides.items()}
    found = rows_of(f"sparse.{shape.name}.forward", forward, flop, options, generator)
    if options.backward:
        backward = backward_calls(backward_sides, inputs, upstream)
        name = f"sparse.{shape.name}.backward"
        found += rows_of(name, backward, 2.5 * flop, options, generator)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="one shape by name")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--flex", action="store_true", help="FlexAttention beside ours")
    parser.add_argument("--fa4", action="store_true", help="FlashAttention-4 beside ours")
    parser.add_argument("--ranges", action="store_true", help="the masks as ranges beside ours")
    parser.add_argument("--out", help="write the rows here, for tools/record")
    options = parser.parse_args()
    print(f"seed {options.seed}, {torch.cuda.get_device_name()}")
    torch.manual_seed(options.seed)
    generator = random.Random(options.seed)
    rows = []
    for shape in shapes(options.rows):
        if options.only in (None, shape.name):
            rows += measure(shape, options, generator)
        if options.out:  # as far as it came, should a peer end the process
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
