# SPDX-License-Identifier: Apache-2.0
"""Lists of lengths, positions and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def seqlens2cu_seqlens(seqlens: Sequence[int]) -> list[int]:
    """Lengths of documents -> their bounds, [n + 1], from 0 on."""
    return list(accumulate(seqlens, initial=0))


def cu_seqlens2seqlens(cu_seqlens: Sequence[int]) -> list[int]:
    """Bounds of documents, [n + 1] -> their lengths."""
    return [end - start for start, end in pairwise(cu_seqlens)]


def flatten_nested_list(nested_list: Sequence) -> list:
    """What lists and tuples in each other hold, in order."""
    flat: list = []
    for item in nested_list:
        if isinstance(item, (list, tuple)):
            flat += flatten_nested_list(item)
        else:
            flat.append(item)
    return flat


def perm_idxs2unperm_idxs(perm_idxs: Sequence[int]) -> list[int]:
    """The inverse of a permutation; IndexError for a number that is no position."""
    inverse = [0] * len(perm_idxs)
    for place, index in enumerate(perm_idxs):
        inverse[index] = place
    return inverse


def wrap_to_list(x: Any, broadcast_to_length: int = 1) -> list[Any]:
    """A list of what a list or a tuple holds; anything else, so many times."""
    return list(x) if isinstance(x, (list, tuple)) else [x] * broadcast_to_length


def is_list_value_all(
    _list: Sequence[Any], val: Any = None, just_same: bool = False, allow_empty: bool = False
) -> bool:
    """Whether every entry is val, or with just_same the first one; allow_empty for an empty list.
    AssertionError for both.
    """
    return _holds(all, _list, val, just_same, allow_empty)


def is_list_value_any(
    _list: Sequence[Any], val: Any = None, just_same: bool = False, allow_empty: bool = False
) -> bool:
    """Whether an entry is val, or with just_same the first one; allow_empty for an empty list.
    AssertionError for both.
    """
    return _holds(any, _list, val, just_same, allow_empty)


def _holds(quantifier: Callable, entries, val: Any, just_same: bool, allow_empty: bool) -> bool:
    if not entries:
        return allow_empty
    assert not just_same or val is None, f"val is {val!r} with just_same; allowed: None"
    wanted = entries[0] if just_same else val
    return quantifier(entry == wanted for entry in entries)


def is_list_type_all(
    _list: Sequence[Any], _type: Any = None, just_same: bool = False, allow_empty: bool = False
) -> bool:
    """Whether every entry is of _type, or with just_same of the first one's; allow_empty for an
    empty list. AssertionError for both.
    """
    if not _list:
        return allow_empty
    assert not just_same or _type is None, f"_type is {_type!r} with just_same; allowed: None"
    wanted = type(_list[0]) if just_same else _type
    return all(isinstance(entry, wanted) for entry in _list)


def transpose_matrix(matrix: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Columns of a matrix. ValueError for none and for rows of unequal lengths."""
    if not matrix:
        raise ValueError("matrix is empty; allowed: at least one row")
    lengths = {len(row) for row in matrix}
    if len(lengths) > 1:
        raise ValueError(f"matrix has rows of lengths {sorted(lengths)}; allowed: one length")
    return [list(column) for column in zip(*matrix)]


def _itself(x: Any) -> Any:
    return x


def argmin(iterable: Iterable[Any], key: Callable = _itself) -> int:
    """Position of the smallest entry, the first among equals."""
    entries = list(iterable)
    return min(range(len(entries)), key=lambda index: key(entries[index]))


def argmax(iterable: Iterable[Any], key: Callable = _itself) -> int:
    """Position of the largest entry, the first among equals."""
    entries = list(iterable)
    return max(range(len(entries)), key=lambda index: key(entries[index]))


def argsort(iterable: Iterable[Any], key: Callable = _itself) -> list[int]:
    """Positions in ascending order of the entries; equal ones keep their order."""
    entries = list(iterable)
    return sorted(range(len(entries)), key=lambda index: key(entries[index]))
