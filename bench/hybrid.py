#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hybrid models over ranks: torchrun --nproc-per-node 2 bench/hybrid.py --out ROWS, or on the host
alone bench/hybrid.py --device cpu --out ROWS

On GPUs, forward and backward beside what other systems do, all sides in rounds in random order,
medians of the slowest rank:
  hybrid2.gdn.over_fla      convolution and gated delta rule (16 / 32 heads of 128), 64k packed
                            tokens: our time over that of fla-core's own context parallelism
  hybrid2.stack.share.*     three GDN layers and one of attention (16 : 2 heads of 256), with their
                            projections: tokens per second and GPU over one GPU that has it all
  hybrid2.stack.over_a2a    the same: the time by all-to-all over heads (Ulysses, and the same for
                            GDN by fla-core's kernels) over ours
On the host, by the code of the tests: families and trees that are right in float64, tables of runs
that are, and how bytes of exchanges grow with tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import sys
from unittest import mock

# Sides take turns with borders of their own, of which fla keeps four: a training has one.
os.environ.setdefault("FLA_TENSOR_CACHE_SIZE", "32")

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dist_attention import start
from distributed import layouts
from distributed.baselines import Ulysses
from distributed.kernel import Kernel
from distributed.sides import Problem, Side, lengths_of, take
from distributed.timing import Stopwatch, median
from magi_attention import Plan, masks
from magi_attention.plan import BoundPlan
from magi_attention.recurrent import causal_conv1d, gated_delta_rule

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEVICE, TYPE = "cuda", torch.bfloat16
HIDDEN, WIDTH = 2048, 4
KEY_HEADS, VALUE_HEADS, DIM = 16, 32, 128
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
HEADS = (16, 2, 256)  # of attention: queries, keys, dim


def row(name: str, value: float, unit: str) -> dict:
    return {"name": name, "value": value, "unit": unit}


def documents_of(name: str, total: int) -> list[int]:
    """Borders of documents: causal (one), or varlen_causal."""
    lengths = lengths_of(total) if name == "varlen_causal" else [total]
    return [0, *itertools.accumulate(lengths)]


def plan_of(name: str, total: int, ranks: int, placement: str) -> Plan:
    mask = masks.from_cu_seqlens(documents_of(name, total), causal=True)
    sizes = dict(zip(("num_heads_q", "num_heads_kv", "head_dim"), HEADS))
    return Plan.from_mask(mask, cp_size=ranks, placement=placement, **sizes)


class Planned:
    """Layers under a bound plan."""

    def __init__(self, bound: BoundPlan) -> None:
        self._bound = bound

    def delta(self, mixed, gates, weight):
        mixed = causal_conv1d(self._bound, mixed, weight, activation="silu")
        q, k, v = split(mixed)
        return gated_delta_rule(self._bound, norm(q), norm(k), v, *decay(gates))

    def attend(self, q, k, v):
        return self._bound.calc_attn(q, k, v)[0]


class ByFla:
    """GDN by fla-core's own context parallelism, every rank with as many rows in order."""

    def __init__(self, borders: list[int], group: dist.ProcessGroup) -> None:
        from fla.ops.cp import build_cp_context

        host = torch.tensor(borders, device="cpu")
        self._context = build_cp_context(
            host.to(DEVICE), group, conv1d_kernel_size=WIDTH, cu_seqlens_cpu=host
        )

    def delta(self, mixed, gates, weight):
        from fla.modules.causal_conv1d import causal_conv1d as conv
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        options = dict(cp_context=self._context)
        mixed, _ = conv(mixed.unsqueeze(0), weight, activation="silu", **options)
        q, k, v = (x.unsqueeze(0) for x in split(mixed[0]))
        given = (x.unsqueeze(0) for x in decay(gates))
        return chunk_gated_delta_rule(norm(q), norm(k), v, *given, **options)[0][0]


class _ToHeads(torch.autograd.Function):
    """[rows, heads, dim] each -> all rows, a share of the heads; or back."""

    @staticmethod
    def forward(ctx, ulysses, is_back, *tensors):
        ctx.ulysses, ctx.is_back = ulysses, is_back
        move = ulysses._to_rows if is_back else ulysses._to_heads
        return tuple(x.contiguous() for x in move(*tensors))

    @staticmethod
    def backward(ctx, *gradients):
        move = ctx.ulysses._to_heads if ctx.is_back else ctx.ulysses._to_rows
        return None, None, *move(*(x.contiguous() for x in gradients))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, attention, q, k, v):
        ctx.attention = attention
        out, ctx.saved = attention.forward(q.contiguous(), k.contiguous(), v.contiguous())
        return out

    @staticmethod
    def backward(ctx, dout):
        return None, *ctx.attention.backward(dout.contiguous(), ctx.saved)


class ByHeads:
    """All rows and a share of the heads on every rank, in each layer."""

    def __init__(self, borders: list[int], problem: Problem, group: dist.ProcessGroup) -> None:
        self._host = torch.tensor(borders, device="cpu")
        self._borders, self._size, self._rank = self._host.to(DEVICE), group.size(), group.rank()
        self._ulysses = Ulysses(group, Kernel(problem.slices, problem.total, problem.total))

    def delta(self, mixed, gates, weight):
        from fla.modules.causal_conv1d import causal_conv1d as conv
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        rows = dict(cu_seqlens=self._borders, cu_seqlens_cpu=self._host)
        parts = _ToHeads.apply(self._ulysses, False, *split(mixed))
        (gates,) = _ToHeads.apply(self._ulysses, False, gates.unflatten(1, (VALUE_HEADS, 2)))
        taps = (x.chunk(self._size, 1)[self._rank] for x in split(weight.T))
        taps = torch.cat([x.flatten(1) for x in taps], 1).T.contiguous()
        whole = torch.cat([x.flatten(1) for x in parts], 1)
        whole, _ = conv(whole.unsqueeze(0), taps, activation="silu", **rows)
        q, k, v = (x.unsqueeze(0) for x in split(whole[0], self._size))
        given = (x.unsqueeze(0) for x in decay(gates.flatten(1)))
        out, _ = chunk_gated_delta_rule(norm(q), norm(k), v, *given, **rows)
        return _ToHeads.apply(self._ulysses, True, out[0])[0]

    def attend(self, q, k, v):
        return _Attend.apply(self._ulysses, q, k, v)


def split(mixed: torch.Tensor, ranks: int = 1) -> list[torch.Tensor]:
    """[rows, channels of a share of the heads] -> q, k, v [rows, heads, DIM]."""
    keys, values = KEY_HEADS * DIM // ranks, VALUE_HEADS * DIM // ranks
    return [x.unflatten(1, (-1, DIM)) for x in mixed.split((keys, keys, values), 1)]


def norm(x: torch.Tensor) -> torch.Tensor:
    from fla.modules.norm.l2norm import l2norm

    return l2norm(x.contiguous())


def decay(gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """g and beta [rows, heads] of a projection [rows, 2 heads]."""
    a, b = gates.unflatten(1, (-1, 2)).unbind(2)
    return -F.softplus(a.float()), b.sigmoid()


def gdn_parameters(generator: torch.Generator) -> list[torch.Tensor]:
    """Projections in and out, taps of the convolution."""
    wide = CHANNELS + VALUE_HEADS * (DIM + 2)
    return [
        *made(generator, (wide, HIDDEN), (HIDDEN, VALUE_HEADS * DIM)),
        *made(generator, (CHANNELS, WIDTH), scale=0.5),
    ]


def made(generator, *shapes, scale: float | None = None) -> list[torch.Tensor]:
    options = dict(generator=generator, device=DEVICE)
    return [
        torch.randn(shape, **options).mul_(scale or shape[-1] ** -0.5).to(TYPE).requires_grad_()
        for shape in shapes
    ]


class Stack:
    """Three GDN layers and one of attention, with their projections."""

    def __init__(self, layers) -> None:
        self._layers = layers
        generator = torch.Generator(DEVICE).manual_seed(0)
        self._gdn = [gdn_parameters(generator) for _ in range(3)]
        heads_q, heads_k, dim = HEADS
        shapes = ((HIDDEN, heads_q * dim), ((heads_q + 2 * heads_k) * dim, HIDDEN))
        self._attention = made(generator, *shapes)
        self.parameters = [*itertools.chain(*self._gdn), *self._attention]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for inward, outward, weight in self._gdn:
            parts = (CHANNELS, 2 * VALUE_HEADS, VALUE_HEADS * DIM)
            mixed, gates, z = F.linear(normed(x), inward).split(parts, 1)
            out = self._layers.delta(mixed, gates, weight)
            out = normed(out).flatten(1) * F.silu(z)
            x = x + F.linear(out, outward)
        outward, inward = self._attention
        heads_q, heads_k, dim = HEADS
        parts = (heads_q, heads_k, heads_k)
        q, k, v = F.linear(normed(x), inward).unflatten(1, (-1, dim)).split(parts, 1)
        return x + F.linear(self._layers.attend(q, k, v).flatten(1), outward)


class Delta:
    """A convolution and the gated delta rule."""

    def __init__(self, layers) -> None:
        self._layers = layers
        self.parameters = made(torch.Generator(DEVICE).manual_seed(0), (CHANNELS, WIDTH), scale=0.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        mixed, gates = x.split((CHANNELS, 2 * VALUE_HEADS), 1)
        return self._layers.delta(mixed, gates, self.parameters[0]).flatten(1)


def normed(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:])


class Timed:
    """forward and backward of layers, as Stopwatch calls them."""

    def __init__(self, layers) -> None:
        self._layers = layers

    def forward(self, x, *_):
        out = self._layers(x)
        return out, (x, out)

    def backward(self, dout, saved):
        x, out = saved
        return torch.autograd.grad(out, (x, *self._layers.parameters), dout)


def side_of(layers, rows, whole, padding: int = 0) -> Side:
    """rows: those of this rank, of the whole x and dout."""
    x, dout = (take(t, rows, padding) for t in whole)
    return Side("side", Timed(layers), rows, (x.requires_grad_(), None, None, dout))


def planned_side(kind, plan: Plan, group, whole) -> Side:
    bound = plan.bind(group)
    rows = plan.ranges_of(bound.rank).to_naive_ranges()
    padding = bound.local_rows - sum(end - begin for begin, end in rows)
    return side_of(kind(Planned(bound)), rows, whole, padding)


def error_of(side: Side, wanted: torch.Tensor) -> float:
    """Of results, relative to the largest one."""
    with torch.no_grad():
        found, _ = side.attention.forward(side.tensors[0])
    exact = take(wanted, side.rows)
    return ((found[: len(exact)] - exact).norm() / exact.norm()).item()


def compared(kind, width: tuple[int, int], sides, total: int, options, group) -> dict:
    """Seconds of the rounds of sides, which are compared with the first one before."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    draw = dict(generator=generator, device=DEVICE, dtype=TYPE)
    whole = [torch.randn(total, columns, **draw) for columns in width]
    made_sides = {name: make(whole) for name, make in sides.items()}
    first = next(iter(made_sides.values()))
    with torch.no_grad():
        wanted, _ = first.attention.forward(first.tensors[0])
    watch = Stopwatch(group, torch.device(DEVICE))
    for name, side in made_sides.items():
        (error,) = watch.slowest([error_of(side, wanted)])
        if group.rank() == 0:
            print(f"{kind} {name}: differs by {error:.2g}", file=sys.stderr, flush=True)
        if error > 0.05:
            raise SystemExit(f"{kind}: {name} differs from one GPU alone by {error:.2g}")
    found = watch.rounds(made_sides, options.seconds, options.rounds)
    times = {name: median(sum(pair) for pair in pairs) for name, pairs in found.items()}
    if group.rank() == 0:
        for name, seconds in times.items():
            forward = median(pair[0] for pair in found[name])
            print(f"{kind} {name}: {forward * 1e3:.2f} ms forward, {seconds * 1e3:.2f} ms both",
                  file=sys.stderr, flush=True)  # fmt: skip
    return times


def gdn_rows(options, group) -> list[dict]:
    total, name = 64 * options.scale, "varlen_causal"
    borders, size = documents_of(name, total), group.size()
    contiguous = layouts.contiguous(total, size)[group.rank()]
    plans = [plan_of(name, total, ranks, options.placement) for ranks in (1, size)]
    sides = {
        "alone": lambda whole: planned_side(Delta, plans[0], None, whole),
        "ours": lambda whole: planned_side(Delta, plans[1], group, whole),
        "fla": lambda whole: side_of(Delta(ByFla(borders, group)), contiguous, whole),
    }
    width = (CHANNELS + 2 * VALUE_HEADS, VALUE_HEADS * DIM)
    times = compared("gdn", width, sides, total, options, group)
    return [row(f"hybrid{size}.gdn.over_fla", times["ours"] / times["fla"], "ratio")]


def stack_rows(options, group, name: str, label: str, total: int) -> list[dict]:
    borders, size = documents_of(name, total), group.size()
    problem = Problem(name, total, HEADS)
    contiguous = layouts.contiguous(total, size)[group.rank()]
    plans = [plan_of(name, total, ranks, options.placement) for ranks in (1, size)]
    sides = {
        "alone": lambda whole: planned_side(Stack, plans[0], None, whole),
        "ours": lambda whole: planned_side(Stack, plans[1], group, whole),
        "a2a": lambda whole: side_of(Stack(ByHeads(borders, problem, group)), contiguous, whole),
    }
    times = compared(f"stack.{label}", (HIDDEN, HIDDEN), sides, total, options, group)
    share = times["alone"] / (size * times["ours"])
    return [
        row(f"hybrid{size}.stack.share.{label}", share, "share"),
        row(f"hybrid{size}.stack.over_a2a.{label}", times["a2a"] / times["ours"], "ratio"),
    ]


def worst_over_a2a(rows: list[dict], size: int) -> list[dict]:
    name = f"hybrid{size}.stack.over_a2a"
    ratios = [found["value"] for found in rows if found["name"].startswith(name)]
    return [row(name, min(ratios), "ratio")] if ratios else []


def on_gpus(options) -> list[dict]:
    start("cuda")
    group, rows = dist.group.WORLD, []
    cells = {
        "gdn": lambda: gdn_rows(options, group),
        "packed.64k": lambda: stack_rows(
            options, group, "varlen_causal", "packed.64k", 64 * options.scale
        ),
        "causal.128k": lambda: stack_rows(
            options, group, "causal", "causal.128k", 128 * options.scale
        ),
    }
    for name in options.cells.split(","):
        rows += cells[name]()
        torch.cuda.empty_cache()
        if group.rank() == 0:
            write(options, rows + worst_over_a2a(rows, group.size()))
    dist.destroy_process_group()
    return rows


def families_right(test_hybrid, ranks) -> tuple[float, float]:
    """How many families are right on 1 to 4 ranks in two layouts, and the share in trees."""
    right, names = 0, [name for name in test_hybrid.FAMILIES if name != "lfm2_moe"]
    for family in names:
        errors = [
            max(ranks.run(size, test_hybrid.documents, family, placement))
            for size in range(1, 5)
            for placement in ("auto", "contiguous")
        ]
        right += max(errors) <= test_hybrid.TOLERANCE
        print(f"{family}: {max(errors):.2g}", file=sys.stderr, flush=True)
    trees = [
        max(max(ranks.run(size, test_hybrid.tree, family)) for size in range(1, 5))
        for family in test_hybrid.OF_TREES
    ]
    return right, sum(error <= test_hybrid.TOLERANCE for error in trees) / len(trees)


def tables_right(test_recurrent, ranks, count: int) -> float:
    """The share of random tables of runs, on 1 to 4 ranks, on which all layers are right."""
    failures = 0
    for seed in range(count):
        try:
            ranks.run(1 + seed % 4, test_recurrent.all_agree, seed)
        except AssertionError as error:
            failures += 1
            print(error, file=sys.stderr, flush=True)
    return 1 - failures / count


def bytes_moved(group, total: int) -> int:
    """Bytes that two ranks send for one GDN layer, forward and backward, a document on both."""
    from magi_attention.rows import Rows

    plan = plan_of("causal", total, group.size(), "contiguous").bind(group)
    sent, exchange = [], Rows.exchange

    def counted(rows, name, kind, x, out, owned, needed):
        moved = needed if kind else owned  # gradients go the other way
        sent.append(sum(count for *_, count in moved) * x.shape[1] * x.element_size())
        exchange(rows, name, kind, x, out, owned, needed)

    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4), (2, 4), (2, 4), (2,), (2,))
    inputs = [torch.rand(plan.local_rows, *shape, generator=generator) for shape in shapes]
    q, k, v, g, beta = (x.requires_grad_() for x in inputs)
    taps = torch.ones(8, WIDTH)
    with mock.patch.object(Rows, "exchange", counted):
        mixed = causal_conv1d(plan, v.flatten(1), taps).view_as(v)
        gated_delta_rule(plan, q, k, mixed, -g, beta).sum().backward()
    return sum(sent)


def on_host(options) -> list[dict]:
    sys.path.insert(0, str(ROOT / "tests/python"))
    import test_hybrid
    import test_recurrent
    from ranks import Ranks

    ranks, rows = Ranks(), []
    if options.tables:
        rows.append(
            row("hybrid.tables", tables_right(test_recurrent, ranks, options.tables), "share")
        )
    long, short = (sum(ranks.run(2, bytes_moved, n * 1024)) for n in (64, 8))
    rows.append(row("hybrid.state_bytes.growth", long / short, "ratio"))
    families, trees = families_right(test_hybrid, ranks)
    rows += [row("hybrid.families", families, "families"), row("hybrid.trees", trees, "share")]
    ranks.stop()
    return rows


def write(options, rows: list[dict]) -> None:
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cells", default="gdn,packed.64k,causal.128k")
    parser.add_argument("--placement", default="auto", help="of our plans")
    parser.add_argument("--scale", type=int, default=1024, help="tokens that count as 1k")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the rounds of a cell")
    parser.add_argument("--rounds", type=int, default=7, help="at least")
    parser.add_argument("--tables", type=int, default=1000, help="of runs, on the host")
    options = parser.parse_args()
    rows = on_host(options) if options.device == "cpu" else on_gpus(options)
    if options.device == "cpu":
        write(options, rows)
    if not dist.is_initialized() or dist.get_rank() == 0:
        for found in rows:
            print(f"{found['name']:40s} {found['value']:.4g} {found['unit']}", file=sys.stderr)


if __name__ == "__main__":
    main()
