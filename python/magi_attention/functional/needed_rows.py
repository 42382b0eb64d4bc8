# SPDX-License-Identifier: Apache-2.0
"""Gathers the rows of other ranks that a rank's queries may see under a plan's mask, and returns
their gradients to their owners.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from magi_attention._group_holders import is_destroyed
from magi_attention._native.attention import DTYPE_CODES
from magi_attention._native.handles import MaskHandle, PlanHandle, default_plan_config
from magi_attention._native.moved_rows import as_given, as_moved, as_no_view, as_rows
from magi_attention._native.tensors import as_plain, refuse_transforms
from magi_attention._native.vtable import CAST, SUM
from magi_attention.comm.first_call import Backwards
from magi_attention.common._arguments import check_kind
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.functional._rank_attention import check_rows
from magi_attention.rows import Rows

_NO_BOUND = -1  # on exchange memory
_OTHERS = 1  # the segment of keys of other ranks
_FREE = 1 << 30  # a bound of a band that bounds nothing


class NeededRows:
    """The rows of a plan on one rank: its own, followed by the rows of other ranks that its queries
    may see under the plan's mask, in the order of the sequence. keys: plan_of_keys.
    """

    def __init__(self, keys: PlanHandle, rank: int, rows: Rows) -> None:
        self._rows = rows
        self._backwards = Backwards(rows.cp_group)
        text = json.loads(keys.to_json())
        counts = [0] * text["placement_q"]["num_ranks"]
        for i, owner in enumerate(text["placement_q"]["chunk_rank"]):
            counts[owner] += min(rows.chunk_size, max(0, rows.total_seqlen - i * rows.chunk_size))
        self.has_short_rank = min(counts) < 2  # in one row a copy of columns may be a view
        transfers = text["transfers"]
        self.moves_rows = len(transfers) > 0  # on any rank, as all take part
        # The tables of an exchange, see Communicator.exchange.
        self.owned = [(dst, row, count) for src, dst, row, *_, count in transfers if src == rank]
        mine = [transfer for transfer in transfers if transfer[1] == rank]
        self.needed = [(src, at, count) for src, _, _, _, _, at, count in mine]
        self.own_ids = rows.ids_of(rank)[: rows.num_valid]
        received = torch.empty(sum(t[-1] for t in mine), dtype=torch.int64, device="cpu")
        for src, _, row, _, _, at, count in mine:
            received[at : at + count] = rows.ids_of(src)[row : row + count]
        self.received_ids, self.num_received = received, received.shape[0]  # in each call
        of_rank = text["ranks"][rank]
        self._slices = [
            (attend[1] == _OTHERS, *piece)
            for attend in of_rank["attends"]
            for piece in of_rank["slices"][attend[4] : attend[5]]
        ]

    def ids(self, num_rows: int) -> torch.Tensor:
        """int64 [num_rows + num_received]: the row of the sequence of each row that gather returns
        for num_rows own rows; padding counts as the last row.
        """
        last = self._rows.total_seqlen - 1
        padding = torch.full((num_rows - self.own_ids.shape[0],), last, device="cpu")
        return torch.cat((self.own_ids, padding, self.received_ids))

    def mask(self, num_rows: int) -> MaskHandle:
        """The rows of ids(num_rows) that each of num_rows own queries sees."""
        bands = array("i")
        for is_of_others, q0, q1, k0, k1, least, most in self._slices:
            shift = num_rows if is_of_others else 0
            bands.extend((q0, q1, k0 + shift, k1 + shift))
            bands.append(-_FREE if least is None else least + shift)
            bands.append(_FREE if most is None else most + shift)
        table = torch.tensor(bands, dtype=torch.int32, device="cpu").view(-1, 6)
        return MaskHandle.from_bands(table, num_rows, num_rows + self.num_received)

    def gather(
        self, tensors: tuple[torch.Tensor, ...], call: int, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Own rows of each tensor, followed by the rows of others. Gradients of the rows of others
        go back to their owners and are added in rank order. Collective; call: equal on all ranks.
        rows: the rows of the result to return, once each; None: all.
        """
        if not self.moves_rows and rows is None:
            return tensors
        return _Gather.apply(self, call, rows, *tensors)

    def fetched(self, tensors: tuple[torch.Tensor, ...], call: int) -> tuple[torch.Tensor, ...]:
        """gather without gradients; tensors of one type lie beside each other, as columns."""
        if not self.moves_rows:
            return tensors
        moved = [as_moved(x) for x in tensors]
        own, widths = moved[0].shape[0], [x.shape[1] for x in moved]
        # What is sent and what comes lie as they travel, tensor beside tensor: nothing is packed.
        whole = moved[0].new_empty((own + self.num_received, sum(widths)))
        torch.cat(moved, 1, out=whole[:own])
        columns = whole.split(widths, 1)
        self._exchange(CAST, [x[:own] for x in columns], [x[own:] for x in columns], call)
        pairs = zip(columns, tensors)
        return tuple(as_no_view(as_given(y, x, whole.shape[0])) for y, x in pairs)

    def returned(self, gradients: tuple[torch.Tensor, ...], call: int) -> tuple[torch.Tensor, ...]:
        """The gradients of own rows from those of fetched rows, of whose type they are."""
        whole = [x if x.dtype in DTYPE_CODES else x.float() for x in gradients]
        own = whole[0].shape[0] - self.num_received
        totals = [x[:own].clone(memory_format=torch.contiguous_format) for x in whole]
        if self.moves_rows:
            parts = [as_rows(x[own:]) for x in whole]
            self._exchange(SUM, parts, [as_rows(total) for total in totals], call)
        return tuple(totals)

    def gather_checked(self, x: torch.Tensor, digest: int) -> torch.Tensor:
        """BoundPlan.gather_needed."""
        rows = self._rows
        with rows.refusals():
            check_kind("x", x, torch.Tensor, "a torch.Tensor")
            refuse_transforms()
            x = as_plain("x", x)
            check_rows("x", x.shape[0] if x.dim() else "no", rows.count, rows.num_valid)
        if self.moves_rows:
            rows.begin("gather_needed", x)
        return self.gather((x,), digest)[0]

    @contextmanager
    def backward(self, name: str) -> Iterator[None]:
        """The context of the backward of `name`; tells other ranks of an error inside."""
        try:
            refuse_second_derivative(name)
            self._backwards.begin()
            yield
        except Exception as error:
            self.refuse(error)
            raise

    def refuse(self, error: Exception) -> None:
        """Tells other ranks, which may wait in a backward, that this one raises error there."""
        self._backwards.refuse(error)

    def _exchange(self, kind: int, inputs, outputs, call: int) -> None:
        """Moves rows of tensors of one type; call: a number that ranks compare. RuntimeError if the
        group was destroyed.
        """
        if is_destroyed(self._rows.cp_group):
            raise RuntimeError("cp_group of the plan was destroyed; allowed: a live group")
        communicator = self._rows.communicator
        communicator.exchange(kind, inputs, outputs, self.owned, self.needed, call)()


def plan_of_keys(plan: PlanHandle) -> PlanHandle:
    """A plan of the same mask and placement that moves the keys that each rank needs of others in
    one exchange, whatever the plan itself moves, and in how many stages.
    """
    config, placement = default_plan_config(), plan.placement()
    config.num_ranks, config.overlap_degree = placement.info().num_ranks, 1
    config.max_exchange_bytes = _NO_BOUND
    return PlanHandle.create(plan.mask(), config, placement)


class _Gather(torch.autograd.Function):
    """One function of all tensors, so that all ranks move their gradients in one order."""

    @staticmethod
    def forward(ctx, needed: NeededRows, call: int, rows: torch.Tensor | None, *tensors):
        ctx.needed, ctx.call, ctx.rows = needed, call, rows
        ctx.num_rows = tensors[0].shape[0] + needed.num_received
        whole = needed.fetched(tensors, call)
        if rows is not None:
            whole = tuple(x.index_select(0, rows) for x in whole)
        ctx.mark_non_differentiable(*(x for x in whole if not x.is_floating_point()))
        return whole

    @staticmethod
    def backward(ctx, *gradients):
        with ctx.needed.backward("a gather of needed rows"):
            given = [dx for dx in gradients if dx.is_floating_point()]
            if ctx.rows is not None:
                # The gradients of rows that were left out are 0.
                wide = [dx.new_zeros((ctx.num_rows, *dx.shape[1:])) for dx in given]
                given = [x.index_copy_(0, ctx.rows, dx) for x, dx in zip(wide, given)]
            sums = iter(ctx.needed.returned(tuple(given), ctx.call))
        back = (next(sums).to(dx.dtype) if dx.is_floating_point() else None for dx in gradients)
        return None, None, None, *back
