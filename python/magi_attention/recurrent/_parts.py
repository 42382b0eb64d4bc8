# SPDX-License-Identifier: Apache-2.0
"""Long runs in parts, whose states are made beside each other: a kernel goes through the rows of a
run one chunk after the other, and one run alone leaves most of a GPU idle.
"""

from __future__ import annotations

import bisect
import itertools

import torch

from magi_attention.recurrent._table import OwnRuns

_ROUND = 64  # rows of a part are a multiple: kernels begin a chunk at each


class Parts:
    """The own runs of a rank, those with heirs in parts of `rows` rows or somewhat less; None: as
    they are. runs: the parts, as recurrences get them; are_cut: whether one is no run. What
    ranks exchange is of whole runs.
    """

    def __init__(self, own: OwnRuns, rows: int | None) -> None:
        self._own = own
        counts = [
            -(-length // rows) if rows and run in own.with_heirs else 1
            for run, length in enumerate(own.lengths)
        ]
        counts = [max(count, 1) for count in counts]
        self._counts = counts
        self._first = [0, *itertools.accumulate(counts)]
        self.are_cut = sum(counts) > len(counts)
        self.runs = self._cut() if self.are_cut else own
        place = {part: i for i, part in enumerate(self.runs.with_heirs)}
        # Of each own run with heirs: the places of its parts among the summaries.
        self._summaries = {run: [place[p] for p in self._of(run)] for run in own.with_heirs}

    def _of(self, run: int) -> range:
        return range(self._first[run], self._first[run + 1])

    def _cut(self) -> OwnRuns:
        lengths, parents, with_heirs = [], [], []
        for run, (length, count) in enumerate(zip(self._own.lengths, self._counts)):
            size = -(-length // (count * _ROUND)) * _ROUND
            sizes = [min(size, length - at * size) for at in range(count)]
            root = -1 if run in self._own.roots else 0
            parents += [root, *self._of(run)[:-1]]
            with_heirs += self._of(run) if run in self._own.with_heirs else []
            lengths += sizes
        return OwnRuns(lengths, parents, with_heirs)

    def whole(self, recurrence, factors: torch.Tensor, offsets: torch.Tensor):
        """The summaries [runs with heirs, ...] of those of parts."""
        if not self.are_cut:
            return factors, offsets
        found = []
        for parts in self._summaries.values():
            first, *others = parts
            factor, offset = factors[first : first + 1], offsets[first : first + 1]
            for part in others:
                own = factors[part : part + 1]
                factor = recurrence.through(own, factor)
                offset = recurrence.through(own, offset) + offsets[part : part + 1]
            found.append((factor, offset))
        return tuple(torch.cat(column) for column in zip(*found))

    def starts(self, recurrence, factors, offsets, of_runs: torch.Tensor) -> torch.Tensor:
        """The states that parts start from, of those that runs [runs, ...] start from."""
        if not self.are_cut:
            return of_runs
        found = []
        for run, state in enumerate(of_runs.split(1)):
            found.append(state)
            for part in self._summaries.get(run, [])[:-1]:
                state = recurrence.through(factors[part : part + 1], state)
                state = state + offsets[part : part + 1]
                found.append(state)
        return torch.cat(found)

    def starts_back(self, recurrence, factors, of_starts: torch.Tensor) -> torch.Tensor:
        """The gradients of the states that own runs start from, which are no roots, by those of the
        states that parts start from, which are none: starts backwards.
        """
        if not self.are_cut:
            return of_starts
        found = []
        for run in self._own.others:
            *parts, last = self._of(run)
            gradient = of_starts[self._start(last)]
            for part in parts[::-1]:
                back = recurrence.back(factors[self._end(part)], gradient)
                gradient = of_starts[self._start(part)] + back
            found.append(gradient)
        return torch.cat(found) if found else of_starts[:0]

    def ends(self, recurrence, factors, of_starts, of_runs: torch.Tensor) -> torch.Tensor:
        """The gradients of the states at the ends of parts with heirs, by those at the ends of runs
        with heirs and of the states that parts start from.
        """
        if not self.are_cut:
            return of_runs
        found = []
        for run, gradient in zip(self._own.with_heirs, of_runs.split(1)):
            ends = [gradient]
            for part in self._of(run)[:0:-1]:
                back = recurrence.back(factors[self._end(part)], ends[-1])
                ends.append(of_starts[self._start(part)] + back)
            found += ends[::-1]
        return torch.cat(found) if found else of_runs

    def _start(self, part: int) -> slice:
        """The place of a part among those that are no roots."""
        at = bisect.bisect_left(self.runs.others, part)
        return slice(at, at + 1)

    def _end(self, part: int) -> slice:
        """The place of a part among those with heirs."""
        at = bisect.bisect_left(self.runs.with_heirs, part)
        return slice(at, at + 1)


def parts_of(own: OwnRuns, rows: int | None) -> Parts:
    """Those of the own runs, made once."""
    key = Parts, rows
    if key not in own.kept:
        own.kept[key] = Parts(own, rows)
    return own.kept[key]
