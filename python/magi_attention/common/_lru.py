# SPDX-License-Identifier: Apache-2.0
"""The one kind of cache of this package."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

_MISSING = object()
_get = OrderedDict.get


class LruCache(OrderedDict):
    """Values by key. Where max_size is passed, the key that was used longest ago is forgotten.

    Uses are noted once half of max_size is passed: noting one hashes the key again, and a call of
    attention in a loop should cost that once.
    """

    def __init__(self, max_size: int, *args: Any, **kwargs: Any) -> None:
        self.max_size = max_size
        super().__init__(*args, **kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._note(key)
        while len(self) > self.max_size:
            self.popitem(last=False)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, which counts as used, or default."""
        value = _get(self, key, _MISSING)
        if value is _MISSING:
            return default
        if 2 * len(self) > self.max_size:
            self._note(key)
        return value

    def _note(self, key: Any) -> None:
        try:
            self.move_to_end(key)
        except KeyError:  # another thread has made the cache forget it
            pass
