# SPDX-License-Identifier: Apache-2.0
"""What a cell times, with its tensors: calc_attn under settings, our kernel alone on the whole
sequence, baselines.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from attention_masks import BLOCK, DATA, WINDOW, area, documents, mask_slices
from distributed import layouts
from distributed.baselines import AllGather, Ring, Ulysses
from distributed.kernel import Kernel
from distributed.links import Link
from distributed.ours import OfBackend, Ours, Setting
from magi_attention.backends._table import is_usable

BASELINES = ("ulysses", "ring", "allgather", "usp", "usp4")
# Ulysses with the kernels of other packages, where they are installed and know the mask.
OF_BACKENDS = ("ulysses_fa4", "ulysses_cudnn", "ulysses_torch")
ULYSSES_MASKS = ("full", "causal", "varlen_full", "varlen_causal")  # that these know
# Names of the benches' masks that are called otherwise here.
_OTHER_NAMES = {"varlen_block_causal": "block_causal"}
MASKS = ("full", "causal", "varlen_full", "varlen_causal", "window", "varlen_block_causal",
         "prefix_tree", "video_blocks")  # fmt: skip
# Ranks of each Ulysses inside a ring: on 8 ranks 2 x 4 and 4 x 2.
_ULYSSES_OF_USP = {"usp": 2, "usp4": 4}
_DRAWN = 2048  # the least length that documents are drawn for


class Problem:
    """One mask over a sequence; shape: heads of q, of k and the head dim."""

    def __init__(self, mask: str, total: int, shape: tuple[int, int, int]) -> None:
        self.mask, self.total, self.shape = mask, total, shape
        scale = min(total, _DRAWN) / _DRAWN  # shorter sequences are for tests
        window, block = max(1, int(WINDOW * scale)), max(1, int(BLOCK * scale))
        lengths = lengths_of(total) if mask.startswith("varlen") else None
        name = _OTHER_NAMES.get(mask, mask)
        self.slices = mask_slices(name, total, lengths, window, block)
        self.area = area(self.slices)

    @property
    def flops(self) -> float:
        """Of one forward pass."""
        heads, _, dim = self.shape
        return 4.0 * self.area * heads * dim


def lengths_of(total: int, draw: int = 0) -> list[int]:
    """Documents of a draw; of a length below all that were drawn, those of the least, scaled."""
    if total >= _DRAWN:
        return documents(DATA, total, draw)
    ends = [0, *itertools.accumulate(documents(DATA, _DRAWN, draw))]
    ends = sorted({end * total // _DRAWN for end in ends})
    return [end - begin for begin, end in itertools.pairwise(ends)]


def allows(name: str, ranks: int, heads_kv: int) -> bool:
    """Whether a baseline runs on this machine, so many ranks and heads of k."""
    if name in OF_BACKENDS and not is_usable(name.removeprefix("ulysses_")):
        return False
    members = _ULYSSES_OF_USP.get(name, ranks if name.startswith("ulysses") else 1)
    least = 2 * members if name in _ULYSSES_OF_USP else 2
    return ranks >= least and ranks % members == 0 and heads_kv % members == 0


class Side:
    """Something to be timed: attention and the tensors of this rank; rows: those it holds."""

    def __init__(self, kind: str, attention, rows, tensors) -> None:
        self.kind, self.attention, self.rows, self.tensors = kind, attention, rows, tensors
        # Of the slowest or largest rank; bytes beyond inputs and results, torch's and others'.
        self.error = self.extra_bytes = self.outside_bytes = 0.0


def take(x: torch.Tensor, rows, padding: int = 0) -> torch.Tensor:
    """These rows of x, and rows of zeros behind them."""
    parts = [x[begin:end] for begin, end in rows]
    if padding or not parts:
        parts.append(x.new_zeros(padding, *x.shape[1:]))
    return torch.cat(parts)


class Makers:
    """Makes the sides of a problem on the ranks of a group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._usp_groups = {
            name: self._make_usp_groups(count)
            for name, count in _ULYSSES_OF_USP.items()
            if allows(name, self.size, count)
        }

    def warm_up(self, device: torch.device) -> None:
        """Connections between all ranks, whose memory would count for who comes first."""
        sent = torch.zeros(self.size, device=device)
        for group in (self.group, *itertools.chain(*self._usp_groups.values())):
            link = Link(group)
            part = sent[: link.size].clone()
            link.all_to_all(torch.empty_like(part), part)
            link.all_gather(torch.empty_like(part), part[:1].clone())
            link.reduce_scatter(torch.empty_like(part[:1]), part)
            if link.size > 1:
                link.shift(torch.empty_like(part), part).wait()

    def _make_usp_groups(self, count: int):
        """Of this rank: its `count` neighbours, and the ring of every count-th rank."""
        ranks, mine = dist.get_process_group_ranks(self.group), []
        neighbours = [ranks[i : i + count] for i in range(0, self.size, count)]
        rings = [ranks[i::count] for i in range(count)]
        for members in (*neighbours, *rings):
            group = dist.new_group(members)
            if ranks[self.rank] in members:
                mine.append(group)
        return mine

    def allows(self, name: str, shape) -> bool:
        """Whether a baseline runs here on that many ranks and heads."""
        return allows(name, self.size, shape[1])

    def baseline(self, name: str, problem: Problem, tensors) -> Side:
        """tensors: q, k, v and the gradient of out of the whole sequence."""
        attention, rows = self._attention(name, problem)
        return Side("baseline", attention, rows, [take(t, rows) for t in tensors])

    def _attention(self, name: str, problem: Problem):
        total, slices = problem.total, problem.slices
        if name.startswith("ulysses"):
            heads_q, heads_kv, dim = problem.shape
            shape = heads_q // self.size, heads_kv // self.size, dim
            inner = Kernel(slices, total, total)
            if name in OF_BACKENDS:
                inner = OfBackend(name.removeprefix("ulysses_"), slices, total, shape)
            return Ulysses(self.group, inner), layouts.contiguous(total, self.size)[self.rank]
        if name in _ULYSSES_OF_USP:
            near, ring = self._usp_groups[name]
            rows = layouts.zigzag(total, ring.size())
            inner = Ring(ring, slices, rows)
            own = rows[dist.get_rank(ring)]
            return Ulysses(near, inner), layouts.parts_of(own, near.size(), dist.get_rank(near))
        rows = layouts.zigzag(total, self.size)
        if name == "ring":
            return Ring(self.group, slices, rows), rows[self.rank]
        if name == "allgather":
            return AllGather(self.group, slices, rows, total), rows[self.rank]
        raise SystemExit(f"--sides has {name}; allowed: {', '.join(BASELINES)}")

    def alone(self, problem: Problem, tensors) -> Side:
        """Our kernel with the whole sequence, on every rank."""
        kernel = Kernel(problem.slices, problem.total, problem.total)
        return Side("alone", kernel, [(0, problem.total)], tensors)

    def ours(self, setting: Setting, problem: Problem, tensors) -> Side:
        """calc_attn under a setting."""
        attention = Ours(setting, problem.slices, problem.total, problem.shape, self.group)
        rows, padding = attention.rows, attention.padding
        return Side("ours", attention, rows, [take(t, rows, padding) for t in tensors])

    def kernel_of(self, rows, problem: Problem, tensors) -> Side:
        """Our kernel for these rows over the keys they see, all at hand: what is left of calc_attn
        without communication.
        """
        q, k, v, dout = tensors
        keys = layouts.seen_keys(problem.slices, rows) or [(0, 1)]
        counts = [sum(end - begin for begin, end in ranges) for ranges in (rows, keys)]
        kernel = Kernel(layouts.between(problem.slices, rows, keys), *counts)
        local = [take(q, rows), take(k, keys), take(v, keys), take(dout, rows)]
        return Side("kernel", kernel, rows, local)
