# SPDX-License-Identifier: Apache-2.0
"""Masks of band slices as runs of keys for each row: what the forms of other kernels are made of.
All tensors are in host memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Runs(NamedTuple):
    """Pairs that count once each: row rows[i] sees the keys [begins[i], ends[i]). Ordered by row,
    then by key; between runs of a row there are keys that it does not see. int64 [runs].
    """

    rows: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor
    num_rows: int
    num_keys: int

    def counts(self) -> torch.Tensor:
        """Number of runs of each row, int64 [num_rows]."""
        return torch.bincount(self.rows, minlength=self.num_rows)

    def places(self) -> torch.Tensor:
        """Returns for each run its number in its row."""
        counts = self.counts()
        firsts = counts.cumsum(0) - counts
        return torch.arange(len(self.rows), device="cpu") - firsts[self.rows]

    def select(self, chosen: torch.Tensor) -> Runs:
        """The runs of a mask [runs]."""
        return Runs(
            self.rows[chosen], self.begins[chosen], self.ends[chosen], self.num_rows, self.num_keys
        )


def layers_of(slices: torch.Tensor, num_rows: int, num_keys: int) -> list[Runs]:
    """The pairs that at least one of the slices (backends.Problem.slices) shows, those that at
    least two show, and so on: a pair counts as often as there are slices that show it.
    """
    rows, begins, ends = _rows_of(slices)
    # Where a row's number of slices changes: begins come before ends at the same key, so that what
    # touches is one run.
    keys = torch.cat((begins, ends))
    steps = torch.ones(len(keys), dtype=torch.int64, device="cpu")
    steps[len(begins) :] = -1
    rows = rows.repeat(2)
    order = torch.argsort((rows * (num_keys + 1) + keys) * 2 + (steps < 0), stable=True)
    rows, keys, steps = rows[order], keys[order], steps[order]
    depths = steps.cumsum(0)  # 0 after a row's last end
    layers = []
    for depth in range(1, int(depths.max()) + 1 if len(depths) else 1):
        opens = (depths == depth) & (steps > 0)
        closes = (depths == depth - 1) & (steps < 0)
        found = Runs(rows[opens], keys[opens], keys[closes], num_rows, num_keys)
        layers.append(found.select(found.begins < found.ends))
    return [layer for layer in layers if len(layer.rows)]


def _rows_of(slices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row, first key and end of what each row sees of each slice, without empty ones."""
    q0, q1, k0, k1, d_min, d_max = slices.long().unbind(1)
    heights = (q1 - q0).clamp(min=0)
    of = torch.repeat_interleave(torch.arange(len(slices), device="cpu"), heights)
    firsts = heights.cumsum(0) - heights
    rows = torch.arange(len(of), device="cpu") - firsts[of] + q0[of]
    begins = torch.maximum(k0[of], rows + d_min[of])
    ends = torch.minimum(k1[of], rows + d_max[of] + 1)
    is_seen = begins < ends
    return rows[is_seen], begins[is_seen], ends[is_seen]


def split(runs: Runs, most: int) -> list[Runs]:
    """Parts in which no row has more than `most` runs."""
    numbers = runs.places() // most
    parts = range(int(numbers.max()) + 1 if len(numbers) else 0)
    return [runs.select(numbers == part) for part in parts]


def interval_ends(runs: Runs) -> torch.Tensor:
    """int32 [n, rows], n odd and as small as can be: a row sees keys [0, e0), [e1, e2) and so on.
    Ends ascend; after a row's last run they repeat its end.
    """
    counts = runs.counts()
    from_zero = torch.zeros(runs.num_rows, dtype=torch.int64, device="cpu")
    places = runs.places()
    from_zero[runs.rows[(places == 0) & (runs.begins == 0)]] = 1
    needed = torch.where(counts > 0, 2 * (counts - from_zero) + 1, 1)
    num_ends = int(needed.max()) if len(needed) else 1
    last = torch.zeros(runs.num_rows, dtype=torch.int64, device="cpu")
    last.scatter_reduce_(0, runs.rows, runs.ends, "amax")
    found = last.repeat(num_ends, 1)
    first = torch.where((counts > 0) & (from_zero == 0), 0, found[0])
    found[0] = first
    at = 2 * (places - from_zero[runs.rows]) + 1  # of a run's begin; -1: it begins at key 0
    inner = at > 0
    found[at[inner], runs.rows[inner]] = runs.begins[inner]
    found[at + 1, runs.rows] = runs.ends
    return found.int()


def bounds(runs: Runs, num_runs: int, num_rows: int) -> torch.Tensor:
    """int32 [2 * num_runs, num_rows]: run i of a row is [found[2i], found[2i + 1]); those that a
    row has not, and rows after the last one, are empty.
    """
    found = torch.zeros(2 * num_runs, num_rows, dtype=torch.int32, device="cpu")
    places = runs.places()
    found[2 * places, runs.rows] = runs.begins.int()
    found[2 * places + 1, runs.rows] = runs.ends.int()
    return found


class Blocks(NamedTuple):
    """Which blocks of pairs a mask shows, bool [blocks of rows, blocks of keys]: whole, and in
    part. Blocks that reach past the last row or key are never whole.
    """

    whole: torch.Tensor
    part: torch.Tensor


def blocks_of(runs: Runs, height: int, width: int) -> Blocks:
    """The mask by blocks of `height` rows and `width` keys."""
    num_down = -(-runs.num_rows // height)
    num_across = -(-runs.num_keys // width)
    down = runs.rows // height
    first, last = -(-runs.begins // width), runs.ends // width  # whole blocks of a run
    spans = first < last
    changes = torch.zeros(num_down * (num_across + 1), dtype=torch.int32, device="cpu")
    for column, step in ((first, 1), (last, -1)):
        places = (down * (num_across + 1) + column)[spans]
        changes.index_add_(0, places, torch.full_like(places, step, dtype=torch.int32))
    covering = changes.view(num_down, num_across + 1).cumsum(1)[:, :num_across]
    touched = covering > 0
    for column in (runs.begins // width, (runs.ends - 1) // width):
        touched[down, column] = True
    whole = covering == height
    return Blocks(whole, touched & ~whole)


def block_mask_of(runs: Runs, size: int, mask_mod, device: torch.device):
    """FlexAttention's BlockMask of the runs, by blocks of `size` rows and keys; mask_mod: for
    those that are shown in part.
    """
    from torch.nn.attention.flex_attention import BlockMask

    blocks, lists = blocks_of(runs, size, size), []
    for shown in (blocks.part, blocks.whole):
        # Those that are set, in order, before the others.
        order = torch.argsort(shown.int(), dim=1, descending=True, stable=True)
        lists += [shown.sum(1).int(), order.int()]
    return BlockMask.from_kv_blocks(
        *(t[None, None].contiguous().to(device) for t in lists), BLOCK_SIZE=size, mask_mod=mask_mod,
        seq_lengths=(runs.num_rows, runs.num_keys),
    )  # fmt: skip


def listed(shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns for each row of a matrix of flags how many are set, int32 [rows], and which, int32
    [rows, most] in ascending order.
    """
    counts = shown.sum(1)
    most = max(1, int(counts.max())) if len(counts) else 1
    columns = torch.zeros(len(counts), most, dtype=torch.int32, device="cpu")
    rows, found = shown.nonzero().unbind(1)
    firsts = counts.cumsum(0) - counts
    columns[rows, torch.arange(len(rows), device="cpu") - firsts[rows]] = found.int()
    return counts.int(), columns


def unseen(runs: Runs) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the rows that see no key, and of the keys that no row sees; int64."""
    changes = torch.zeros(runs.num_keys + 1, dtype=torch.int64, device="cpu")
    ones = torch.ones_like(runs.begins)
    changes.index_add_(0, runs.begins, ones).index_add_(0, runs.ends, -ones)
    keys = changes.cumsum(0)[: runs.num_keys]
    return (runs.counts() == 0).nonzero().flatten(), (keys == 0).nonzero().flatten()


class Documents(NamedTuple):
    """Sequences of rows and keys, one after the other: lengths [sequences, 2]. Each row sees
    keys of its own sequence, at most `left` before and `right` after the diagonal that ends in the
    last row and key; None: all.
    """

    lengths: torch.Tensor
    left: int | None
    right: int | None


def documents_of(slices: torch.Tensor, num_rows: int, num_keys: int) -> Documents | None:
    """The slices as such sequences, some without rows or without keys; None where they are not."""
    q0, q1, k0, k1 = slices.long()[:, :4].unbind(1)
    shown = slices[(q0 < q1) & (k0 < k1)].long()
    q0, q1, k0, k1, d_min, d_max = shown[torch.argsort(shown[:, 0])].unbind(1)
    if bool((q0[1:] < q1[:-1]).any() or (k0[1:] < k1[:-1]).any()):
        return None
    # How far the first key lies before the diagonal in the last row, the last key after it in the
    # first row: bounds from there on hide nothing.
    left = _one_bound(k1 - q1 - d_min, k1 - 1 - k0)
    right = _one_bound(d_max - (k1 - q1), q1 - 1 - q0)
    if left == _DIFFERS or right == _DIFFERS:
        return None
    if right is not None and bool((k1 - k0 < q1 - q0).any()):
        return None  # rows at the head of a sequence would see nothing, which kernels differ in
    cuts_q = torch.stack((q0, q1), 1).flatten()
    cuts_k = torch.stack((k0, k1), 1).flatten()
    ends = torch.tensor([num_rows, num_keys], device="cpu")
    cuts = torch.cat((torch.stack((cuts_q, cuts_k), 1), ends[None]))
    steps = cuts.diff(dim=0, prepend=torch.zeros(1, 2, dtype=torch.int64, device="cpu"))
    lengths = _without_mixed_gaps(steps)
    return Documents(lengths[lengths.any(1)], left, right)


_DIFFERS = -1


def _one_bound(bounds: torch.Tensor, farthest: torch.Tensor) -> int | None:
    """The bound that does what each sequence's own does: None where none hides anything, _DIFFERS
    where there is no such one that is 0 or more.
    """
    hides = bounds < farthest
    if not bool(hides.any()):
        return None
    bound = int(bounds[hides][0])
    fits = torch.where(hides, bounds == bound, farthest <= bound)
    return bound if bound >= 0 and bool(fits.all()) else _DIFFERS


def _without_mixed_gaps(steps: torch.Tensor) -> torch.Tensor:
    """Steps between documents and through them in turn; a gap of rows and keys becomes two."""
    gaps, inner = steps[0::2], steps[1::2]
    of_rows = gaps * torch.tensor([1, 0], device="cpu")
    of_keys = gaps * torch.tensor([0, 1], device="cpu")
    pad = torch.zeros(len(gaps) - len(inner), 2, dtype=torch.int64, device="cpu")
    return torch.stack((of_rows, of_keys, torch.cat((inner, pad))), 1).view(-1, 2)
