# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers over the runs of a plan: states of runs from their summaries, and the rows of
each run from the state that it starts with.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.utils.rnn import pad_sequence

from magi_attention.plan import BoundPlan
from magi_attention.recurrent._rows import fetch_rows, tied
from magi_attention.recurrent._table import RunTable, table_of


class Recurrence(Protocol):
    """A layer whose state after a run is affine in the state before it: H_out = A H_in + B. All
    three are functions that torch differentiates (a torch.autograd.Function, say, with kernels of
    its own). Rows of zeros, in every input, leave the state as it is.
    """

    def scan(
        self, inputs: tuple[torch.Tensor, ...], state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """inputs [runs, rows, ...] and the states [runs, ...] that they start from -> the results
        [runs, rows, ...] and the states at the ends.
        """

    def transfer(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """A of each run, [runs, ...]."""

    def through(self, transfer: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """A H of each run."""

    def zero_state(self, inputs: tuple[torch.Tensor, ...], runs: int) -> torch.Tensor:
        """The states [runs, ...] from which documents start."""


@torch.compiler.disable
def recur(
    plan: BoundPlan, recurrence: Recurrence, inputs: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """The results of a recurrence for this rank's rows; inputs [rows, ...] each, padding included.

    Rows of a document that lie on several ranks, or in several places of one, are runs. A run that
    others start from tells its summary (A, B), whose size does not depend on its rows, to the ranks
    that need it; these make the states in the order of the sequence. Collective: one exchange in
    forward, one in backward.
    """
    table = table_of(plan)
    pieces = list(zip(*(x.split(table.lengths) for x in inputs)))
    outs: list[torch.Tensor] = [inputs[0][:0]] * len(pieces)
    ends: dict[int, torch.Tensor] = {}
    roots = [i for i, is_root in enumerate(table.is_root) if is_root]
    others = [i for i, is_root in enumerate(table.is_root) if not is_root]
    for group, batch in _batches(pieces, roots):
        found, last = recurrence.scan(batch, recurrence.zero_state(batch, len(group)))
        for place, run in enumerate(group):
            outs[run] = found[place, : table.lengths[run]]
            ends[run] = last[place]
    transfers: dict[int, torch.Tensor] = {}
    for group, batch in _batches(pieces, [i for i in others if table.has_heirs[i]]):
        _, last = recurrence.scan(batch, recurrence.zero_state(batch, len(group)))
        found = recurrence.transfer(batch)
        for place, run in enumerate(group):
            ends[run], transfers[run] = last[place], found[place]
    starts, fetched = _starts(table, recurrence, inputs, ends, transfers)
    for group, batch in _batches(pieces, others):
        found, _ = recurrence.scan(batch, torch.stack([starts[run] for run in group]))
        for place, run in enumerate(group):
            outs[run] = found[place, : table.lengths[run]]
    if not outs:  # a rank without rows
        batch = tuple(x.unsqueeze(0) for x in inputs)
        outs = [recurrence.scan(batch, recurrence.zero_state(batch, 1))[0][0]]
    out = torch.cat(outs)
    return out if fetched is None else tied(out, fetched)


def _batches(pieces, runs: list[int]):
    """Runs of like lengths together, filled with zeros: (runs, inputs [runs, rows, ...])."""
    groups: dict[int, list[int]] = {}
    for run in runs:
        groups.setdefault(pieces[run][0].shape[0].bit_length(), []).append(run)
    for group in groups.values():
        columns = zip(*(pieces[run] for run in group))
        yield group, tuple(pad_sequence(list(column), batch_first=True) for column in columns)


def _starts(
    table: RunTable,
    recurrence: Recurrence,
    inputs: tuple[torch.Tensor, ...],
    ends: dict[int, torch.Tensor],
    transfers: dict[int, torch.Tensor],
) -> tuple[dict[int, torch.Tensor], torch.Tensor | None]:
    """The state that each own run that is no document's first starts from, and what was fetched
    for them.
    """
    if not table.moves_states:
        return {}, None
    one = tuple(x[:0].unsqueeze(0) for x in inputs)
    state, transfer = recurrence.zero_state(one, 1)[0], recurrence.transfer(one)[0]
    rows = [
        torch.cat((transfers.get(run, transfer).flatten(), ends.get(run, state).flatten()))
        for run in range(len(table.own))
    ]
    own = torch.stack(rows) if rows else state.new_zeros((0, transfer.numel() + state.numel()))
    fetched = fetch_rows(table.summaries, own, inputs)
    summaries = torch.cat((own, fetched))
    sizes = (transfer.numel(), state.numel())
    first, second = summaries.split(sizes, 1)
    factors, offsets = first.view(-1, *transfer.shape), second.view(-1, *state.shape)
    found, states = {}, None
    for level in table.levels:
        at = level.summaries.to(own.device)
        added = offsets[at]
        if states is not None:
            before = states[level.parents.to(own.device)]
            added = added + recurrence.through(factors[at], before)
        states = added
        for run, place in level.starts:
            found[run] = states[place]
    return found, fetched
