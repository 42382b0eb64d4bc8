# SPDX-License-Identifier: Apache-2.0
"""The runs of a bound plan on one rank: which states and which rows before them they need, who has
these, and who needs what this rank has.
"""

from __future__ import annotations

import bisect
import itertools
import weakref
from typing import Any, NamedTuple

import torch

from magi_attention.plan import BoundPlan
from magi_attention.recurrent._rows import RowFetch

_NONE = -1
_tables: weakref.WeakKeyDictionary[BoundPlan, RunTable] = weakref.WeakKeyDictionary()


class Places(NamedTuple):
    """The places where states are made, on one device.

    levels: runs of one depth, whose parents are runs of the level before: the places of their
    summaries among own and fetched ones, and those of their parents in the level before; summaries:
    those of all levels; starts: for each own run the place of the state it starts from, in all
    levels and a last row of zeros; starts_of_others: the same for own runs that are no roots;
    has_branches: whether several runs start from one state.
    """

    levels: list[tuple[torch.Tensor, torch.Tensor]]
    summaries: torch.Tensor
    starts: torch.Tensor
    starts_of_others: torch.Tensor
    has_branches: bool


class Halo(NamedTuple):
    """The rows before each own run, which a convolution reads.

    fetch: moves the own rows `sent`, each once and ascending, to the ranks that fetch them; places:
    int64 [own runs, width], of each row before a run among own rows, fetched rows and, after
    these, one row of zeros; on_host: these in host memory; known: how many of a run's are rows.
    """

    fetch: RowFetch
    sent: torch.Tensor
    places: torch.Tensor
    on_host: torch.Tensor
    known: list[int]

    def on(self, device: torch.device) -> Halo:
        return self._replace(sent=moved(self.sent, device), places=moved(self.places, device))


class OwnRuns:
    """The runs of a rank, in the order of its rows, of which recurrences get the inputs.

    lengths: rows of each; the padding, if there is one, is a last run of its own. roots: runs that
    start without a state; others: the rest; with_heirs: those whose ends others start from.
    """

    def __init__(self, lengths: list[int], parents: list[int], with_heirs: list[int]) -> None:
        self.lengths, self.with_heirs = lengths, with_heirs
        self.roots = [i for i, parent in enumerate(parents) if parent == _NONE]
        self.others = [i for i, parent in enumerate(parents) if parent != _NONE]
        self.cu_seqlens = _host([0, *itertools.accumulate(lengths)])
        self.kept: dict[Any, Any] = {}  # what kernels make of the runs, for all their calls

    def __len__(self) -> int:
        return len(self.lengths)

    def spans(self, runs: list[int], rows: int) -> list[tuple[int, int]]:
        """Those runs as spans of such as follow each other: (first, the one after the last), each
        of `rows` rows, more only where it is one run.
        """
        found: list[tuple[int, int]] = []
        spent = 0
        for run in runs:
            spent += self.lengths[run]
            if found and found[-1][1] == run and spent <= rows:
                found[-1] = found[-1][0], run + 1
            else:
                found.append((run, run + 1))
                spent = self.lengths[run]
        return found

    def with_heirs_on(self, device: torch.device) -> torch.Tensor:
        return self._index_on(device, self.with_heirs)

    def others_on(self, device: torch.device) -> torch.Tensor:
        return self._index_on(device, self.others)

    def _index_on(self, device: torch.device, runs: list[int]) -> torch.Tensor:
        key = device, id(runs)
        if key not in self.kept:
            self.kept[key] = moved(_host(runs), device)
        return self.kept[key]


class RunTable:
    """The own runs of a rank, and what they need of others.

    moves_states: whether a run of any rank starts from a state, as all take part in an exchange.
    """

    def __init__(self, bound: BoundPlan) -> None:
        # NOTE: not the bound plan, whose table this is for as long as it lives.
        plan, self._rows, self._rank = bound.plan, bound.rows, bound.rank
        self._num_ranks, self._local_rows = plan.cp_size, bound.local_rows
        runs = [(owner, run) for owner in range(plan.cp_size) for run in plan.runs(owner)]
        if not runs and plan.total_seqlen > 0:
            raise ValueError("the plan is of cross-attention; allowed: one of self-attention")
        self._runs = [run for _, run in runs]
        self._owners = [owner for owner, _ in runs]
        ranks = range(plan.cp_size + 1)
        self._first_of = [bisect.bisect_left(self._owners, owner) for owner in ranks]
        self._local_begins = self._places_of_runs()
        order = sorted(range(len(runs)), key=lambda i: self._runs[i].begin)
        self._in_order, self._begins = order, [self._runs[i].begin for i in order]
        self._parents = [self._run_of(run.parent) for run in self._runs]
        self.own = range(self._first_of[bound.rank], self._first_of[bound.rank + 1])
        self.own_runs = self._own_runs()
        self._halos: dict[tuple[int, torch.device], Halo] = {}
        self.summaries, self._places = self._plan_states()
        self._places_on: dict[torch.device, Places] = {}
        self.moves_states = any(parent != _NONE for parent in self._parents)

    def _own_runs(self) -> OwnRuns:
        lengths = [self._runs[i].end - self._runs[i].begin for i in self.own]
        parents = [self._parents[i] for i in self.own]
        heirs = set(self._parents)
        with_heirs = [i for i, run in enumerate(self.own) if run in heirs]
        if padding := self._local_rows - sum(lengths):
            lengths.append(padding)
            parents.append(_NONE)
        return OwnRuns(lengths, parents, with_heirs)

    def _places_of_runs(self) -> list[int]:
        """The first row of each run among those of its owner."""
        places, at = [], 0
        for i, (begin, end, _) in enumerate(self._runs):
            at = 0 if i in self._first_of else at
            places.append(at)
            at += end - begin
        return places

    def _run_of(self, row: int) -> int:
        """The number of the run that holds a row."""
        return _NONE if row < 0 else self._in_order[bisect.bisect_right(self._begins, row) - 1]

    def _ancestors_of_rank(self, rank: int) -> list[int]:
        """Runs whose ends the runs of a rank start from, and those that these do, in the order of
        the owners and of their rows.
        """
        found: set[int] = set()
        for run in range(self._first_of[rank], self._first_of[rank + 1]):
            at = self._parents[run]
            while at != _NONE and at not in found:
                found.add(at)
                at = self._parents[at]
        return sorted(found)

    def _plan_states(self) -> tuple[RowFetch, Places]:
        """The fetch of summaries of others, and where states are made of them."""
        rank, heirs = self._rank, self.own_runs.with_heirs
        place = {self.own[run]: i for i, run in enumerate(heirs)}
        owned = [
            (receiver, place[run], 1)
            for receiver in range(self._num_ranks)
            if receiver != rank
            for run in self._ancestors_of_rank(receiver)
            if run in self.own
        ]
        needed = self._ancestors_of_rank(rank)
        records: list[tuple[int, int, int]] = []
        for run in needed:
            if run not in self.own:
                place[run] = len(heirs) + len(records)
                records.append((self._owners[run], len(records), 1))
        fetch = RowFetch(self._rows, "states of runs", owned, records)
        return fetch, self._make_places(needed, place)

    def _make_places(self, needed: list[int], place: dict[int, int]) -> Places:
        depths: dict[int, int] = {}
        for run in sorted(needed, key=lambda run: self._runs[run].begin):
            depths[run] = depths.get(self._parents[run], -1) + 1
        members: list[list[int]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
        for run, depth in depths.items():
            members[depth].append(run)
        levels = []
        state_of: dict[int, int] = {}
        before: dict[int, int] = {}
        for runs in members:
            parents = [before[self._parents[run]] for run in runs] if before else []
            levels.append((_host([place[run] for run in runs]), _host(parents)))
            before = {run: i for i, run in enumerate(runs)}
            state_of |= {run: len(state_of) + i for run, i in before.items()}
        parents = [self._parents[run] for run in self.own]
        starts = [state_of.get(parent, len(state_of)) for parent in parents]
        starts += [len(state_of)] * (len(self.own_runs) - len(starts))  # the padding's
        of_others = [starts[run] for run in self.own_runs.others]
        summaries = _host([place[run] for runs in members for run in runs])
        heirs = [parent for parent in self._parents if parent != _NONE]
        has_branches = len(set(heirs)) < len(heirs)
        return Places(levels, summaries, _host(starts), _host(of_others), has_branches)

    def places_on(self, device: torch.device) -> Places:
        """The places where states are made, on a device."""
        if device not in self._places_on:
            levels, *others, has_branches = self._places
            levels = [(moved(a, device), moved(b, device)) for a, b in levels]
            others = [moved(x, device) for x in others]
            self._places_on[device] = Places(levels, *others, has_branches)
        return self._places_on[device]

    def halo(self, width: int, device: torch.device) -> Halo:
        """The rows for a convolution that looks at `width` rows before each, its places on a
        device.
        """
        if (width, device) not in self._halos:
            self._halos[width, device] = self._plan_halo(width).on(device)
        return self._halos[width, device]

    def _plan_halo(self, width: int) -> Halo:
        size, rank = self._num_ranks, self._rank
        wanted = [self._rows_before(i, width) for i in range(size)]
        sent = [
            (receiver, self._local_row(row))
            for receiver in range(size)
            if receiver != rank
            for row in _of_others(wanted[receiver], receiver, self._owner_of)
            if self._owner_of(row) == rank
        ]
        own_rows = sorted({row for _, row in sent})
        owned = [(receiver, bisect.bisect_left(own_rows, row), 1) for receiver, row in sent]
        of_others = _of_others(wanted[rank], rank, self._owner_of)
        records = [(self._owner_of(row), i, 1) for i, row in enumerate(of_others)]
        rows = self._local_rows
        place = {row: rows + i for i, row in enumerate(of_others)}
        zero = rows + len(of_others)
        index = [
            [
                zero if row < 0 else place[row] if row in place else self._local_row(row)
                for row in of_run
            ]
            for of_run in wanted[rank]
        ]
        index += [[zero] * width] * (len(self.own_runs) - len(index))
        places = _host([row for of_run in index for row in of_run]).view(len(index), width)
        fetch = RowFetch(self._rows, f"{width} rows before runs", owned, records)
        known = [sum(row < zero for row in of_run) for of_run in index]
        return Halo(fetch, _host(own_rows), places, places, known)

    def _rows_before(self, rank: int, width: int) -> list[list[int]]:
        """The rows that come before each run of a rank, -1 where there are none."""
        found = []
        for run in self._runs[self._first_of[rank] : self._first_of[rank + 1]]:
            rows: list[int] = []
            row = run.parent
            while len(rows) < width and row >= 0:
                rows.append(row)
                holder = self._runs[self._run_of(row)]
                row = row - 1 if row > holder.begin else holder.parent
            found.append([-1] * (width - len(rows)) + rows[::-1])
        return found

    def _owner_of(self, row: int) -> int:
        return self._owners[self._run_of(row)]

    def _local_row(self, row: int) -> int:
        """The place of a row among those of its owner, which are in the order of the sequence."""
        run = self._run_of(row)
        return self._local_begins[run] + row - self._runs[run].begin


def _of_others(wanted: list[list[int]], rank: int, owner_of) -> list[int]:
    """The rows of other ranks among those, in the order of the owners and of the sequence."""
    rows = {row for of_run in wanted for row in of_run if row >= 0}
    return [row for _, row in sorted((owner_of(row), row) for row in rows) if owner_of(row) != rank]


# Tables are kept: what a call in inference mode makes of a plan is for training, too.
@torch.inference_mode(False)
def _host(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")


@torch.inference_mode(False)
def moved(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of host memory on a device. The host waits for a copy of memory that is not pinned,
    after all that the device was given.
    """
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def table_of(bound: BoundPlan) -> RunTable:
    """The table of a bound plan, made at its first recurrent layer."""
    table = _tables.get(bound)
    if table is None:
        table = _tables[bound] = RunTable(bound)
    return table
