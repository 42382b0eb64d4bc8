# SPDX-License-Identifier: Apache-2.0
"""What a layer exchanges as an operator, whose results a checkpoint can keep."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from magi_attention._native.tensors import is_intercepted
from magi_attention.functional._kept import kept
from magi_attention.functional._operators import UNCAPTURED, define

Exchange = Callable[[], list[torch.Tensor]]
_exchanges: dict[int, Exchange] = {}  # under way, as operators take numbers
_numbers = itertools.count()


def _refuse_fake(x: torch.Tensor, number: int) -> list[torch.Tensor]:
    raise NotImplementedError("recurrent layers move rows between ranks, not shapes alone")


define(
    "exchanged",
    "(Tensor x, int number) -> Tensor[]",
    _refuse_fake,
    lambda x, number: _exchanges[number](),
    tags=UNCAPTURED,
)
exchanged_op = torch.ops.magi_attention.exchanged.default


def exchanged(x: torch.Tensor, exchange: Exchange) -> list[torch.Tensor]:
    """The results of exchange(), new tensors beside x. Where a mode sees operators it is one of
    them: a checkpoint that keeps its results does not call it again.
    """
    if not is_intercepted():
        return kept(exchange)
    number = next(_numbers)
    _exchanges[number] = exchange
    try:
        return kept(exchanged_op, x, number)
    finally:
        del _exchanges[number]
