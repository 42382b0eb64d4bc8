# SPDX-License-Identifier: Apache-2.0
"""Which rows a rank of a baseline holds, and what of a mask is left between rows of two ranks."""

from __future__ import annotations

from attention_masks import INFINITE

Rows = list[tuple[int, int]]  # half-open ranges of the sequence, in local order


def contiguous(total: int, size: int) -> list[Rows]:
    """An equal share of the sequence for each rank, in order."""
    check_divides(total, size)
    share = total // size
    return [[(rank * share, (rank + 1) * share)] for rank in range(size)]


def zigzag(total: int, size: int) -> list[Rows]:
    """Each rank has the chunk of its number from the front and from the back."""
    check_divides(total, 2 * size)
    chunk = total // (2 * size)
    pairs = [(rank, 2 * size - 1 - rank) for rank in range(size)]
    return [[(i * chunk, (i + 1) * chunk) for i in pair] for pair in pairs]


def parts_of(rows: Rows, count: int, index: int) -> Rows:
    """The index-th of `count` equal shares of the rows, in local order."""
    total = sum(end - begin for begin, end in rows)
    check_divides(total, count)
    share, found, offset = total // count, [], 0
    first, last = share * index, share * (index + 1)
    for begin, end in rows:
        low, high = max(first - offset, 0), min(last - offset, end - begin)
        if low < high:
            found.append((begin + low, begin + high))
        offset += end - begin
    return found


def check_divides(total: int, count: int) -> None:
    if total % count:
        raise SystemExit(f"{total} rows; allowed here: multiples of {count}")


def between(slices, rows_q: Rows, rows_k: Rows):
    """The slices as seen from local rows: what queries of rows_q see of keys of rows_k."""
    found = []
    places_q, places_k = list(_placed(rows_q)), list(_placed(rows_k))
    for q0, q1, k0, k1, d_min, d_max in slices:
        mine_q = [place for place in places_q if place[1] < q1 and place[2] > q0]
        mine_k = [place for place in places_k if place[1] < k1 and place[2] > k0]
        for q_offset, a, b in mine_q:
            for k_offset, c, d in mine_k:
                q, k = (max(q0, a), min(q1, b)), (max(k0, c), min(k1, d))
                least, most = k[0] - (q[1] - 1), k[1] - 1 - q[0]  # key - query
                if most < d_min or least > d_max:
                    continue
                shift = (k_offset - c) - (q_offset - a)
                # A bound that nothing exceeds is none: such slices can be joined.
                low = -INFINITE if d_min <= least else d_min + shift
                high = INFINITE if d_max >= most else d_max + shift
                found.append(
                    (q[0] + q_offset - a, q[1] + q_offset - a, k[0] + k_offset - c,
                     k[1] + k_offset - c, low, high)
                )  # fmt: skip
    return joined(joined(found, keys_first=True), keys_first=False)


def seen_keys(slices, rows_q: Rows) -> Rows:
    """The keys that queries of these rows may see, in order."""
    found = []
    for q0, q1, k0, k1, d_min, d_max in slices:
        for a, b in rows_q:
            first, last = max(q0, a), min(q1, b) - 1
            if first <= last:
                found.append((max(k0, first + d_min), min(k1, last + d_max + 1)))
    merged: Rows = []
    for begin, end in sorted(piece for piece in found if piece[0] < piece[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def joined(slices, keys_first: bool):
    """Neighbouring slices without bounds that share their queries (their keys) as one."""
    mine, other = ((2, 3), (0, 1)) if keys_first else ((0, 1), (2, 3))
    found = []
    for piece in sorted(slices, key=lambda s: (s[other[0]], s[other[1]], s[mine[0]])):
        last = found[-1] if found else None
        if (
            last is not None
            and last[4:] == piece[4:] == (-INFINITE, INFINITE)
            and all(last[i] == piece[i] for i in other)
            and last[mine[1]] == piece[mine[0]]
        ):
            last = list(last)
            last[mine[1]] = piece[mine[1]]
            found[-1] = tuple(last)
        else:
            found.append(piece)
    return found


def hull(slices):
    """(first, last) of the queries and of the keys that the slices touch."""
    q = min(s[0] for s in slices), max(s[1] for s in slices)
    k = min(s[2] for s in slices), max(s[3] for s in slices)
    return q, k


def moved(slices, q0: int, k0: int):
    """The slices counted from query q0 and key k0."""
    shift = q0 - k0
    return [
        (a - q0, b - q0, c - k0, d - k0,
         low if low == -INFINITE else low + shift, high if high == INFINITE else high + shift)
        for a, b, c, d, low, high in slices
    ]  # fmt: skip


def _placed(rows: Rows):
    """(local row of its begin, begin, end) of every range."""
    offset = 0
    for begin, end in rows:
        yield offset, begin, end
        offset += end - begin
