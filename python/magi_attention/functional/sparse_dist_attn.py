# SPDX-License-Identifier: Apache-2.0
"""Attention of a rank's rows to keys that are chosen in every call, inside of a plan's mask: which
keys of other ranks are needed, how they come and how their gradients go back.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from magi_attention._group_holders import holds_groups, is_destroyed
from magi_attention._native.attention import Options
from magi_attention._native.vtable import CAST, SUM, Communicator
from magi_attention.comm.first_call import Backwards
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.common._lru import LruCache
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.functional._checks import check_params, check_qkv
from magi_attention.functional._operators import check_lists
from magi_attention.functional._rank_attention import LocalShape, RankAttention
from magi_attention.functional._sparse import (
    SparseForwardMeta,
    attend_to_lists,
    check_own_backend,
    check_word,
)

_KEYS_SPACE = 0  # of a transfer in a plan's JSON
_TABLES_KEPT = 4  # a plan's layers have one length, block and device


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


class NeededKeys:
    """The keys of a plan on one rank: its own rows, and behind them the rows of others that the
    plan's mask lets its queries see, in the order of ranks and of their rows.

    position_ids_of(rank): rows of the sequence of a rank's own rows, without padding.
    NotImplementedError for a plan that moves queries: its keys are not those of own queries.
    """

    def __init__(
        self,
        plan_json: str,
        rank: int,
        position_ids_of: Callable[[int], list[int]],
        total: int,
        group: dist.ProcessGroup | None,
        communicator: Communicator | None = None,
    ) -> None:
        self._group, self._communicator = group, communicator
        holds_groups(self, "_group")
        self.backwards = Backwards(group)
        plan = json.loads(plan_json)
        if any(transfer[4] != _KEYS_SPACE for transfer in plan["transfers"]):
            raise NotImplementedError(
                "the plan moves queries; allowed for keys that are chosen in a call: plans whose "
                "keys alone travel; try: work='keys' when the plan is made"
            )
        self._is_alone = plan["config"]["num_ranks"] == 1
        self._own = _host_ids(position_ids_of(rank))
        self.total = total
        # Of an exchange of rows, see Communicator.exchange.
        self.owned = [
            (receiver, run.first, run.count)
            for run in runs_to_send(plan["transfers"], rank)
            for receiver in run.receivers
        ]
        self.needed, rows, at = [], [], 0
        for source in range(plan["config"]["num_ranks"]):
            of_source = _host_ids(position_ids_of(source))
            for run in runs_to_send(plan["transfers"], source):
                if rank in run.receivers:
                    self.needed.append((source, at, run.count))
                    rows.append(of_source[run.first : run.first + run.count])
                    at += run.count
        self._received = torch.cat([_host_ids([]), *rows])
        self._places = LruCache(_TABLES_KEPT)

    def exchange(self, kind: int, inputs, outputs, call: int) -> None:
        """Moves rows of tensors of one type; call: names what ranks compare. RuntimeError where the
        group was destroyed.
        """
        if is_destroyed(self._group):
            raise RuntimeError("cp_group of the plan was destroyed; allowed: a live group")
        self._communicator.exchange(kind, inputs, outputs, self.owned, self.needed, call)()

    @property
    def num_received(self) -> int:
        """Rows that come from other ranks in each call."""
        return self._received.shape[0]

    def fetch(
        self, k: torch.Tensor, v: torch.Tensor, call: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v, own rows, with the received ones behind them; gradients of these go back to
        their owners and are added in the order of the ranks. Collective; call: equal on all ranks.
        """
        if self._is_alone:
            return k, v
        others = _Cast.apply(k, v, self, call)
        return torch.cat((k, others[0])), torch.cat((v, others[1]))

    def places(self, num_rows: int, device: torch.device) -> torch.Tensor:
        """int32 [total + 1]: the row of fetch's result, of num_rows own rows, that holds each row
        of the sequence; -1: it is not here.
        """
        table = self._places.get((num_rows, device))
        if table is None:
            table = torch.full((self.total + 1,), -1, dtype=torch.int32, device="cpu")
            own = self._own[:num_rows]
            table[own] = torch.arange(own.shape[0], dtype=torch.int32, device="cpu")
            last = num_rows + self.num_received
            others = torch.arange(num_rows, last, dtype=torch.int32, device="cpu")
            table[self._received] = others
            table = self._places[num_rows, device] = table.to(device)
        return table

    def blocks(
        self, num_rows: int, block: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Which blocks of the sequence are here as a whole: int32 [blocks + 1], the number of each
        among those that are, -1: it is not here; and the rows of fetch's result that hold them, one
        behind the other, None: all of these, in their order.
        """
        places = self.places(num_rows, device)
        if block == 1:
            return places, None
        found = self._places.get((num_rows, block, device))
        if found is None:
            num_blocks = -(-self.total // block)
            rows = torch.full((num_blocks * block,), -1, dtype=torch.int32, device=device)
            rows[: self.total] = places[: self.total]
            is_here = rows >= 0
            is_here[self.total :] = True
            whole = is_here.view(num_blocks, block).all(1)
            table = torch.full((num_blocks + 1,), -1, dtype=torch.int32, device=device)
            table[:-1][whole] = torch.arange(int(whole.sum()), dtype=torch.int32, device=device)
            rows = rows.view(num_blocks, block)[whole].flatten()
            found = self._places[num_rows, block, device] = table, rows[rows >= 0]
        return found


def _host_ids(ids: list[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


class _Cast(torch.autograd.Function):
    """The rows of k and v that come from others. One function, so that all ranks move the gradients
    of both in one order.
    """

    @staticmethod
    def forward(ctx, k, v, needed: NeededKeys, call: int):
        ctx.needed, ctx.call, ctx.shapes = needed, call, (k.shape, v.shape)
        received = [x.new_empty((needed.num_received, *x.shape[1:])) for x in (k, v)]
        needed.exchange(CAST, [k.contiguous(), v.contiguous()], received, call)
        return tuple(received)

    @staticmethod
    def backward(ctx, dk, dv):
        try:
            refuse_second_derivative("attention")
        except RuntimeError as error:
            ctx.needed.backwards.refuse(error)
            raise
        ctx.needed.backwards.begin()
        wide = torch.promote_types(dk.dtype, torch.float32)
        parts = [gradient.to(wide).contiguous() for gradient in (dk, dv)]
        sums = [part.new_zeros(shape) for part, shape in zip(parts, ctx.shapes)]
        ctx.needed.exchange(SUM, parts, sums, ctx.call)
        return *(total.to(dk.dtype) for total in sums), None, None


def attend_to_chosen_keys(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    indices: torch.Tensor,
    block: int,
    needed: NeededKeys,
    attention: RankAttention,
    numbers: tuple[float | None, float],
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """indices int32 [rows of q, heads_kv, n]: rows of the sequence, or blocks of it; numbers:
    softmax_scale and softcap; attention: of the plan. See BoundPlan.calc_sparse_attn.
    """
    try:
        q, k, v = check_qkv(*qkv)
        check_own_backend(attention.local_shape.backend)
        _check_shapes((q, k, v), attention.local_shape)
        _refuse_gpu(q)
        indices = check_lists(indices, block, (q.shape[0], k.shape[1]), q.device)
        scale, softcap = check_params(*numbers, q.dtype)
        block = min(block, needed.total)
        table, rows = needed.blocks(k.shape[0], block, k.device)
        local, is_missing, word = _local_lists(indices, table)
        check_word(word)
    except Exception as error:
        attention.refuse(error)
        raise
    call = attention.begin_sparse(q, v, block, Options(scale, softcap))
    k, v = needed.fetch(k, v, call)
    if rows is not None:
        # A rank that holds no block as a whole still has keys, which no list names.
        rows = rows if rows.shape[0] else rows.new_zeros(min(1, k.shape[0]))
        k, v = k.index_select(0, rows), v.index_select(0, rows)
    out, meta = attend_to_lists(
        (q, k, v), local, block, (None, "sh"), (*numbers, False, 0, False), needed.backwards.refuse
    )
    group = q.shape[1] // k.shape[1]
    is_missing = is_missing.repeat_interleave(group, 1)
    out = out.masked_fill(is_missing.unsqueeze(-1), float("nan"))
    return out, SparseForwardMeta(meta.lse.masked_fill(is_missing, float("nan")), None, word)


def _refuse_gpu(q: torch.Tensor) -> None:
    """NotImplementedError for tensors that the ranks would have to fetch between GPUs."""
    if q.device.type != "cpu":
        raise NotImplementedError(
            f"index_sparse_indices is on {q.device}; allowed over ranks: cpu, as keys that are "
            "chosen when attention is called are fetched in host memory alone"
        )


def _check_shapes(qkv: tuple[torch.Tensor, ...], local_shape: LocalShape) -> None:
    """ValueError unless the tensors are those of the plan's rank, with or without its padding."""
    _, rows, num_valid, heads_q, heads_kv, dim, dim_v, _ = local_shape
    found = qkv[0].shape[0]
    if found not in (rows, num_valid):
        allowed = f"{rows}" if rows == num_valid else f"{rows}, or {num_valid} without padding"
        raise ValueError(f"q has {found} rows; allowed: {allowed}, the plan's of this rank")
    wanted = (found, heads_q, dim), (found, heads_kv, dim), (found, heads_kv, dim_v)
    for name, tensor, shape in zip("qkv", qkv, wanted):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}.shape is {list(tensor.shape)}; allowed: {list(shape)}")


def _local_lists(
    indices: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lists of the blocks that are here (NeededKeys.blocks); [rows, heads_kv]: whether a list asks
    for others; the error word of these entries and of those outside the sequence.
    """
    outside = table.shape[0] - 1
    is_block = (indices >= 0) & (indices < outside)
    local = table[torch.where(is_block, indices, outside)]  # the last place is -1
    is_missing = is_block & (local < 0)
    is_bad = is_missing | (~is_block & (indices != -1))
    found = is_bad.flatten().nonzero().flatten()
    first_bad = found[:1] if found.shape[0] else found.new_full((1,), -1)
    word = torch.cat((found.new_full((1,), found.shape[0]), first_bad))
    return local, is_missing.any(-1), word
