# SPDX-License-Identifier: Apache-2.0
"""Objects and caches that hold process groups let go of them when torch.distributed has destroyed
the group, as its threads and descriptors live as long as it is held; and as the process ends, as
groups that outlive the end of torch.distributed have threads that may end a finished process with
an error.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


class _DestroyedGroup:
    """Stands where a destroyed group was. torch.distributed knows it as little as that, so calls
    with it fail in the same way; None would mean the default group.
    """

    def __repr__(self) -> str:
        return "a destroyed group"


DESTROYED = _DestroyedGroup()

_holders: dict[int, tuple[weakref.ref, tuple[str, ...]]] = {}
_caches: list[tuple[Callable[[], None], Callable[[Any], None]]] = []
_groups: dict[Any, None] = {}  # those that may be held


def holds_groups(holder: Any, *names: str) -> None:
    """These attributes of a holder are groups, or None: they become DESTROYED with the group, and
    None at exit.
    """
    number = id(holder)
    gone = weakref.ref(holder, lambda _: _holders.pop(number, None))
    _holders[number] = gone, names


def caches_groups(clear: Callable[[], None], forget: Callable[[Any], None]) -> None:
    """Calls clear() at exit, and forget(group) for a destroyed group."""
    _caches.append((clear, forget))


def is_destroyed(group: Any) -> bool:
    """Whether torch.distributed does not know a group any more."""
    try:
        dist.get_rank(group)
    except (ValueError, RuntimeError, KeyError):
        return True
    return False


def note_group(group: Any) -> None:
    """Lets go, before a new group is held, of all that was destroyed before is let go of."""
    gone = [other for other in list(_groups) if is_destroyed(other)]
    for other in gone:
        for _, forget in _caches:
            forget(other)
        _groups.pop(other, None)
    if gone:
        _replace(lambda value: DESTROYED if any(value is other for other in gone) else value)
    _groups[group] = None


def _replace(change: Callable[[Any], Any]) -> None:
    for reference, names in list(_holders.values()):
        holder = reference()
        if holder is not None:
            for name in names:
                object.__setattr__(holder, name, change(getattr(holder, name)))


@atexit.register
def _let_go() -> None:
    for clear, _ in _caches:
        clear()
    _groups.clear()
    _replace(lambda _: None)
