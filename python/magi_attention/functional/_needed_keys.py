# SPDX-License-Identifier: Apache-2.0
"""Keys that a plan brings to a rank, as tensors of one device: for attention whose mask is known
when it is called, inside of what the plan allows for.
"""

from __future__ import annotations

import itertools
import json
from typing import NamedTuple

import torch
import torch.distributed as dist

from magi_attention.comm.primitive import group_cast, group_reduce
from magi_attention.common._lru import LruCache

_KEYS_SPACE = 0  # of a transfer in a plan's JSON
_TABLES_KEPT = 4  # a plan's layers have one length and device


class Run(NamedTuple):
    """Neighbouring rows of one owner that go to the same ranks."""

    first: int
    count: int
    receivers: tuple[int, ...]


def runs_to_send(transfers: list[list[int]], owner: int) -> list[Run]:
    """Runs of an owner's rows, from the transfers of a plan's JSON: [src, dst, src row, segment of
    dst, space, dst row, rows] each.
    """
    spans = [
        (first, first + count, dst)
        for src, dst, first, _, space, _, count in transfers
        if src == owner and dst != owner and space == _KEYS_SPACE
    ]
    cuts = sorted({cut for begin, end, _ in spans for cut in (begin, end)})
    runs = []
    for begin, end in itertools.pairwise(cuts):
        receivers = sorted({dst for first, last, dst in spans if first <= begin < last})
        if receivers:
            runs.append(Run(begin, end - begin, tuple(receivers)))
    return runs


class _Moves(NamedTuple):
    """Arguments of a group cast of key rows."""

    sizes: list[int]
    receivers: list[list[int]]
    wanted: list[int]
    sources: list[int]
    group: dist.ProcessGroup | None


class NeededKeys:
    """The keys of a plan on one rank: its own rows, and behind them the rows of others that the
    plan's mask lets its queries see, in the order of ranks and of their rows.

    position_ids_of(rank): int64 rows of the sequence of a rank's own rows, without padding.
    """

    def __init__(self, plan_json: str, rank: int, position_ids_of, total: int, group) -> None:
        plan = json.loads(plan_json)
        self._own = torch.tensor(position_ids_of(rank), dtype=torch.int64)
        self._total = total
        mine = runs_to_send(plan["transfers"], rank)
        (sizes, receivers), self._num_own_sent = _split(mine)
        wanted, sources, rows = [], [], []
        for source in range(plan["config"]["num_ranks"]):
            of_source = torch.tensor(position_ids_of(source), dtype=torch.int64)
            for run in runs_to_send(plan["transfers"], source):
                if rank in run.receivers:
                    wanted.append(run.count)
                    sources.append(source)
                    rows.append(of_source[run.first : run.first + run.count])
        self._received = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
        self._moves = _Moves(sizes, receivers, wanted, sources, group)
        self._places = LruCache(_TABLES_KEPT)

    @property
    def num_received(self) -> int:
        """Rows that come from other ranks in each call."""
        return self._received.shape[0]

    def fetch(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v, own rows, with the received ones behind them; gradients of these go back to
        their owners and are added in the order of the ranks. Collective.
        """
        if self._moves.group is None or self._moves.group.size() == 1:
            return k, v
        others = _Cast.apply(k, v, self._moves, self._num_own_sent)
        return torch.cat((k, others[0])), torch.cat((v, others[1]))

    def places(self, num_rows: int, device: torch.device) -> torch.Tensor:
        """int64 [total + 1]: the row of fetch's result, of num_rows own rows, that holds each row
        of the sequence; -1: it is not here.
        """
        table = self._places.get((num_rows, device))
        if table is None:
            table = torch.full((self._total + 1,), -1, dtype=torch.int64)
            own = self._own[:num_rows]
            table[own] = torch.arange(own.shape[0])
            table[self._received] = num_rows + torch.arange(self.num_received)
            table = self._places[num_rows, device] = table.to(device)
        return table


def _split(runs: list[Run]) -> tuple[tuple[list[int], list[list[int]]], int]:
    """Sizes and receivers of splits that begin with row 0, and the rows of all of them."""
    sizes, receivers, at = [], [], 0
    for run in runs:
        if run.first > at:
            sizes.append(run.first - at)
            receivers.append([])
        sizes.append(run.count)
        receivers.append(list(run.receivers))
        at = run.first + run.count
    return (sizes, receivers), at


class _Cast(torch.autograd.Function):
    """The rows of k and v that come from others. One function, so that all ranks move the gradients
    of both in one order.
    """

    @staticmethod
    def forward(ctx, k, v, moves: _Moves, num_rows: int):
        ctx.moves, ctx.num_rows, ctx.shapes = moves, num_rows, (k.shape, v.shape)
        return tuple(_cast(x[:num_rows], moves) for x in (k, v))

    @staticmethod
    def backward(ctx, dk, dv):
        gradients = []
        for gradient, shape in zip((dk, dv), ctx.shapes):
            whole = gradient.new_zeros(shape)
            whole[: ctx.num_rows] = _reduced(gradient, ctx.num_rows, ctx.moves)
            gradients.append(whole)
        return *gradients, None, None


def _cast(x: torch.Tensor, moves: _Moves) -> torch.Tensor:
    received = x.new_empty((sum(moves.wanted), *x.shape[1:]))
    arguments = moves.sizes, moves.wanted, moves.receivers, moves.sources, moves.group
    return group_cast(x.contiguous(), received, *arguments).wait_post_process()


def _reduced(gradient: torch.Tensor, num_rows: int, moves: _Moves) -> torch.Tensor:
    """The transpose of _cast; sums are float32 or wider."""
    wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()
    sums = wide.new_zeros((num_rows, *gradient.shape[1:]))
    arguments = moves.wanted, moves.sizes, moves.sources, moves.receivers, moves.group
    return group_reduce(wide, sums, *arguments).wait_post_process()
