# SPDX-License-Identifier: Apache-2.0
"""Objects that hold process groups let go of them as the process ends: groups that outlive the end
of torch.distributed have threads that may end a finished process with an error.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any

_holders: dict[int, tuple[weakref.ref, tuple[str, ...]]] = {}
_clearers: list[Callable[[], None]] = []


def let_go_at_exit(holder: Any, *names: str) -> None:
    """At exit, sets these attributes to None unless the holder is gone before."""
    number = id(holder)
    gone = weakref.ref(holder, lambda _: _holders.pop(number, None))
    _holders[number] = gone, names


def clear_at_exit(clear: Callable[[], None]) -> None:
    """At exit, calls clear."""
    _clearers.append(clear)


@atexit.register
def _let_go() -> None:
    for clear in _clearers:
        clear()
    for reference, names in list(_holders.values()):
        holder = reference()
        if holder is not None:
            for name in names:
                object.__setattr__(holder, name, None)
