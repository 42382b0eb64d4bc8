# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers over the runs of a plan: states of runs from their summaries, and the rows of
each run from the state that it starts with.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch
from torch.nn.utils.rnn import pad_sequence

from magi_attention._native.vtable import CAST, SUM
from magi_attention.common._arguments import check_kind
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.functional._exchanged import exchanged
from magi_attention.plan import BoundPlan
from magi_attention.recurrent._parts import Parts, parts_of
from magi_attention.recurrent._table import OwnRuns, Places, RunTable, table_of

Tensors = tuple[torch.Tensor, ...]


class Forward(Protocol):
    """A forward over the own runs of a rank, in two parts, between which ranks exchange summaries.

    saved: what a backward gets.
    """

    saved: Tensors

    def summary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A and B [runs that have heirs, ...]."""

    def results(self, states: torch.Tensor | None) -> torch.Tensor:
        """The results [rows, ...], by the states [runs, ...] that runs start from, None: zeros."""


class Backward(Protocol):
    """The backward of Forward, in two parts, between which ranks exchange gradients of states."""

    def of_starts(self) -> torch.Tensor:
        """The gradient of each state that a run starts from, [runs that are no roots, ...], by the
        run's own results alone.
        """

    def of_inputs(self, ends: torch.Tensor | None) -> Tensors:
        """The gradients of the inputs; ends: those of the states at the ends of the runs."""


class Recurrence:
    """A layer whose state after a run is affine in the state before it: H_out = A H_in + B.

    A subclass gives `through` and `zero_state`, and either `scan` and `transfer` in operations that
    torch differentiates, or `forward` and `backward` with kernels of its own.

    part_rows: longer runs that others start from come in parts of so many rows at most, each with a
    summary; `through` then has to compose two A, too. None: never.
    """

    part_rows: int | None = None

    def scan(self, inputs: Tensors, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """inputs [runs, rows, ...], float32 or wider, and the states [runs, ...] that they start
        from -> the results [runs, rows, ...] and the states at the ends. Rows of zeros, in every
        input, leave the state as it is.
        """
        raise NotImplementedError

    def transfer(self, inputs: Tensors) -> torch.Tensor:
        """A of each run, [runs, ...]."""
        raise NotImplementedError

    def through(self, transfer: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """A H of each run, in operations that torch differentiates."""
        raise NotImplementedError

    def back(self, transfer: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of H by that of A H of each run. A subclass may have a shorter way."""
        with torch.enable_grad():
            state = torch.zeros_like(gradient).requires_grad_()
            return torch.autograd.grad(self.through(transfer, state), state, gradient)[0]

    def zero_state(self, inputs: Tensors, runs: int) -> torch.Tensor:
        """The states [runs, ...] from which documents start."""
        raise NotImplementedError

    def forward(self, inputs: Tensors, runs: OwnRuns) -> Forward:
        """Begins a forward; inputs [rows, ...], with the rows of one run after the other's."""
        return _ScannedForward(self, inputs, runs)

    def backward(
        self, saved: Tensors, runs: OwnRuns, states: torch.Tensor | None, dout: torch.Tensor
    ) -> Backward:
        """Begins the backward of a forward, by what that saved and the states it was given."""
        return _ScannedBackward(self, saved, runs, states, dout)


@torch.compiler.disable
def check(plan: BoundPlan, **tensors: tuple[torch.Tensor | None, str]) -> None:
    """TypeError for what is no bound plan or no tensor, and ValueError by name for a tensor of
    another shape than in words, each of which stands for one size ("rows": the rank's; "...": any);
    other ranks are told. None passes.
    """
    check_kind("plan", plan, BoundPlan, "a bound plan, Plan.bind(group)")
    sizes: dict[str, int] = {"rows": plan.local_rows}
    with plan.rows.refusals():
        for name, (x, words) in tensors.items():
            if x is None:
                continue
            check_kind(name, x, torch.Tensor, "a tensor")
            axes = words.split()
            shape = [*x.shape]
            if axes[-1] == "...":
                shape = [*shape[: len(axes) - 1], "..."]
            if len(shape) == len(axes):
                for axis, size in zip(axes, shape):
                    sizes.setdefault(axis, size)
            wanted = [sizes.get(axis, axis) for axis in axes]
            if shape != wanted:
                allowed = ", ".join(map(str, wanted))
                raise ValueError(f"{name} has shape {list(x.shape)}; allowed: [{allowed}]")


@torch.compiler.disable
def recur(plan: BoundPlan, recurrence: Recurrence, inputs: Tensors) -> torch.Tensor:
    """The results of a recurrence for this rank's rows; inputs [rows, ...] each, padding included.

    Rows of a document that lie on several ranks, or in several places of one, are runs. A run that
    others start from tells its summary (A, B), whose size does not depend on its rows, to the ranks
    that need it; these make the states in the order of the sequence. Collective: one exchange in
    forward, and one in backward, in which gradients of states go the way back. ValueError for
    inputs of other rows.
    """
    check(plan, **{f"inputs[{i}]": (x, "rows ...") for i, x in enumerate(inputs)})
    return _OverRuns.apply(table_of(plan), recurrence, *inputs)


class _OverRuns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table: RunTable, recurrence: Recurrence, *inputs):
        ctx.table, ctx.recurrence = table, recurrence
        parts = parts_of(table.own_runs, recurrence.part_rows)
        own = factors = states = None
        with torch.autocast(inputs[0].device.type, enabled=False):
            call = recurrence.forward(inputs, parts.runs)
            if table.moves_states:
                begin = partial(_begin, table, recurrence, parts, call)
                own, factors, states = exchanged(inputs[0], begin)
            out = call.results(states)
        ctx.save_for_backward(own, factors, states, *call.saved)
        return out

    @staticmethod
    def backward(ctx, dout):
        refuse_second_derivative("a recurrent layer")
        table, recurrence = ctx.table, ctx.recurrence
        parts = parts_of(table.own_runs, recurrence.part_rows)
        own, factors, states, *saved = ctx.saved_tensors
        ends = None
        with torch.autocast(dout.device.type, enabled=False):
            call = recurrence.backward(tuple(saved), parts.runs, states, dout)
            if table.moves_states:
                ends = _ends(table, recurrence, (own, factors), states, call)
            return None, None, *call.of_inputs(ends)


def _begin(
    table: RunTable, recurrence: Recurrence, parts: Parts, call: Forward
) -> list[torch.Tensor]:
    """A of own parts with heirs, A of own runs with heirs and, after them, of others that this rank
    needs, and the states that own parts start from.
    """
    of_parts = call.summary()
    own = parts.whole(recurrence, *of_parts)
    summaries = torch.cat([x.flatten(1) for x in own], 1)
    fetched = table.summaries.move(CAST, summaries).split([x.shape[1:].numel() for x in own], 1)
    factors, offsets = (torch.cat((x, y.view(-1, *x.shape[1:]))) for x, y in zip(own, fetched))
    states = _starts(table, recurrence, factors, offsets)[table.places_on(offsets.device).starts]
    of_cut = of_parts[0] if parts.are_cut else factors.new_empty(0)  # else they are among factors
    return [of_cut, factors, parts.starts(recurrence, *of_parts, states)]


def _starts(
    table: RunTable, recurrence: Recurrence, factors: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """The states that own runs start from, in the order of places, by the summaries of own runs and
    fetched ones.
    """
    places = table.places_on(offsets.device)
    levels: list[torch.Tensor] = []
    for summaries, parents in places.levels:
        state = offsets[summaries]
        if levels:
            state = state + recurrence.through(factors[summaries], levels[-1][parents])
        levels.append(state)
    levels.append(offsets.new_zeros((1, *offsets.shape[1:])))
    return torch.cat(levels)


def _of_starts(
    places: Places, recurrence: Recurrence, factors: torch.Tensor, starts: torch.Tensor
) -> torch.Tensor:
    """The gradients of the summaries' offsets, in the order of places.summaries, by those of the
    states that own runs start from, which are no roots: _starts backwards.
    """
    found = starts.new_zeros((len(places.summaries), *starts.shape[1:]))
    _add_rows(found, places.starts_of_others, starts, places.has_branches)
    end = len(found)
    for (summaries, parents), (before, _) in zip(places.levels[:0:-1], places.levels[-2::-1]):
        first = end - len(summaries)
        back = recurrence.back(factors[summaries], found[first:end])
        _add_rows(found[first - len(before) : first], parents, back, places.has_branches)
        end = first
    return found


def _add_rows(
    target: torch.Tensor, rows: torch.Tensor, added: torch.Tensor, come_again: bool
) -> None:
    """Adds to rows, in a fixed order where they come again, which is slower."""
    if come_again:
        target.index_put_((rows,), added, accumulate=True)
    else:
        target.index_add_(0, rows, added)


def _ends(
    table: RunTable, recurrence: Recurrence, factors: Tensors, states: torch.Tensor, call: Backward
) -> torch.Tensor:
    """The gradient of the state at the end of each own part: what its heirs give back, on all
    ranks, in the order of the ranks. factors: those of _begin.
    """
    parts = parts_of(table.own_runs, recurrence.part_rows)
    of_parts, of_runs = factors
    heirs, places = len(table.own_runs.with_heirs), table.places_on(states.device)
    of_parts = of_parts if parts.are_cut else of_runs[:heirs]
    found = states.new_zeros((len(of_runs), *states.shape[1:]))
    of_starts = call.of_starts().to(states.dtype) if parts.runs.others else states[:0]
    if table.own_runs.others:
        starts = parts.starts_back(recurrence, of_parts, of_starts)
        offsets = _of_starts(places, recurrence, of_runs, starts)
        found.index_copy_(0, places.summaries, offsets)
    own, others = found.split((heirs, len(found) - heirs))
    back = table.summaries.move(SUM, others.flatten(1), heirs).view_as(own)
    ends = parts.ends(recurrence, of_parts, of_starts, own + back)
    at = parts.runs.with_heirs_on(states.device)
    return torch.zeros_like(states).index_copy_(0, at, ends)


def _batches(pieces, runs: list[int]):
    """Runs of like lengths together, filled with zeros: (runs, inputs [runs, rows, ...])."""
    groups: dict[int, list[int]] = {}
    for run in runs:
        groups.setdefault(pieces[run][0].shape[0].bit_length(), []).append(run)
    for group in groups.values():
        columns = zip(*(pieces[run] for run in group))
        yield group, tuple(pad_sequence(list(column), batch_first=True) for column in columns)


def widened(*inputs: torch.Tensor) -> Tensors:
    """The inputs in the type in which states are kept, float32 or wider."""
    wide = torch.float32
    for x in inputs:
        wide = torch.promote_types(wide, x.dtype)
    return tuple(x.to(wide) for x in inputs)


class _ScannedForward:
    """A forward by a recurrence's scan; its backward computes it again."""

    def __init__(self, recurrence: Recurrence, inputs: Tensors, runs: OwnRuns) -> None:
        self.saved = inputs
        self._recurrence, self._runs = recurrence, runs
        wide = self._inputs = widened(*inputs)
        self._pieces = list(zip(*(x.split(runs.lengths) for x in wide)))

    def summary(self) -> tuple[torch.Tensor, torch.Tensor]:
        recurrence, runs = self._recurrence, self._runs
        empty = tuple(x[:0].unsqueeze(0) for x in self._inputs)
        heirs = runs.with_heirs
        factor, offsets = recurrence.transfer(empty), recurrence.zero_state(empty, len(heirs))
        factors = factor.repeat(len(heirs), *[1] * (factor.dim() - 1))
        for group, batch in _batches(self._pieces, heirs):
            at = [heirs.index(run) for run in group]
            _, offsets[at] = recurrence.scan(batch, recurrence.zero_state(batch, len(group)))
            factors[at] = recurrence.transfer(batch)
        return factors, offsets

    def results(self, states: torch.Tensor | None) -> torch.Tensor:
        recurrence, outs = self._recurrence, {}
        for group, batch in _batches(self._pieces, list(range(len(self._runs)))):
            start = recurrence.zero_state(batch, len(group)) if states is None else states[group]
            found, _ = recurrence.scan(batch, start)
            for place, run in enumerate(group):
                outs[run] = found[place, : self._runs.lengths[run]]
        if not outs:  # a rank without rows
            batch = tuple(x.unsqueeze(0) for x in self._inputs)
            return recurrence.scan(batch, recurrence.zero_state(batch, 1))[0][0]
        return torch.cat([outs[run] for run in range(len(outs))])


class _ScannedBackward:
    def __init__(
        self,
        recurrence: Recurrence,
        saved: Tensors,
        runs: OwnRuns,
        states: torch.Tensor | None,
        dout: torch.Tensor,
    ) -> None:
        self._runs, self._states = runs, states
        with torch.enable_grad():
            self._leaves = tuple(x.detach().requires_grad_() for x in saved)
            wide = widened(*self._leaves)
            pieces = list(zip(*(x.split(runs.lengths) for x in wide)))
            douts = dout.split(runs.lengths)
            # Roots apart, as nothing asks for the gradients of their states.
            self._roots = self._batches_of(recurrence, pieces, douts, runs.roots)
            self._others = self._batches_of(recurrence, pieces, douts, runs.others)

    def _batches_of(self, recurrence, pieces, douts, runs: list[int]) -> list[tuple]:
        """(runs, their states, results, states at their ends, gradients of the results)."""
        found = []
        for group, batch in _batches(pieces, runs):
            start = recurrence.zero_state(batch, len(group))
            start = start if self._states is None else self._states[group]
            start = start.detach().requires_grad_()
            out, end = recurrence.scan(batch, start)
            dout = pad_sequence([douts[run] for run in group], batch_first=True)
            found.append((group, start, out, end, dout.to(out.dtype)))
        return found

    def of_starts(self) -> torch.Tensor:
        others = self._runs.others
        found = self._states.new_zeros((len(others), *self._states.shape[1:]))
        for group, start, out, _, dout in self._others:
            options = dict(retain_graph=True, materialize_grads=True)
            at = [others.index(run) for run in group]
            (found[at],) = torch.autograd.grad(out, start, dout, **options)
        return found

    def of_inputs(self, ends: torch.Tensor | None) -> Tensors:
        found, given = [], []
        for group, _, out, end, dout in (*self._roots, *self._others):
            found.append(out)
            given.append(dout)
            if ends is not None:
                found.append(end)
                given.append(ends[group])
        if not found:
            return tuple(x.new_zeros(x.shape) for x in self._leaves)
        return torch.autograd.grad(found, self._leaves, given, materialize_grads=True)
