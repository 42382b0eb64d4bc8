# SPDX-License-Identifier: Apache-2.0
"""Rows that a rank fetches of others, and whose gradients go back to their owners."""

from __future__ import annotations

import torch

from magi_attention._native.vtable import CAST, SUM
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.functional._exchanged import exchanged
from magi_attention.rows import Rows


class RowFetch:
    """One move of rows under a bound plan: owned has (receiver, first own row, rows), needed has
    (owner, first place, rows), see Communicator.exchange. name: what ranks compare of it.
    """

    def __init__(
        self,
        rows: Rows,
        name: str,
        owned: list[tuple[int, int, int]],
        needed: list[tuple[int, int, int]],
    ) -> None:
        self._rows, self._name = rows, name
        self._owned, self._needed = owned, needed
        self.count = sum(rows for _, _, rows in needed)

    def fetched(self, x: torch.Tensor) -> torch.Tensor:
        """The rows [count, width] that come where each rank gives x; checkpoints can keep them."""
        return exchanged(x, lambda: [self.move(CAST, x)])[0]

    def move(self, kind: int, x: torch.Tensor, rows: int | None = None) -> torch.Tensor:
        """The rows that come where each rank gives x, `rows` of them, None: count."""
        make = x.new_empty if kind == CAST else x.new_zeros  # a cast writes all rows
        found = make((self.count if rows is None else rows, x.shape[1]))
        self._rows.exchange(self._name, kind, x.contiguous(), found, self._owned, self._needed)
        return found


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fetch: RowFetch):
        ctx.fetch, ctx.rows = fetch, x.shape[0]
        return fetch.fetched(x)

    @staticmethod
    def backward(ctx, dx):
        refuse_second_derivative("a recurrent layer")
        return ctx.fetch.move(SUM, dx, ctx.rows), None


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, fetched):
        ctx.shape = fetched.shape
        return out.view_as(out)

    @staticmethod
    def backward(ctx, dout):
        return dout, dout.new_zeros(ctx.shape)


def fetch_rows(fetch: RowFetch, x: torch.Tensor) -> torch.Tensor:
    """x [rows that are sent, width] -> the fetched rows [fetch.count, width]. Collective over
    ranks.
    Gradients of a row that several ranks fetch are added in the order of the ranks.
    """
    return _Fetch.apply(x, fetch)


def tied(out: torch.Tensor, fetched: torch.Tensor) -> torch.Tensor:
    """out, whose backward moves the gradients of the fetched rows in any case, as other ranks wait
    for them, and before all that comes before the layer, so that ranks move in one order.
    """
    return _Tie.apply(out, fetched)
