# SPDX-License-Identifier: Apache-2.0
"""The one kind of cache of this package."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

_MISSING = object()


class LruCache(OrderedDict):
    """Values by key. Where max_size is passed, the key that was used longest ago is forgotten."""

    def __init__(self, max_size: int, *args: Any, **kwargs: Any) -> None:
        self.max_size = max_size
        super().__init__(*args, **kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.max_size:
            self.popitem(last=False)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, which counts as used, or default."""
        value = super().get(key, _MISSING)
        if value is _MISSING:
            return default
        try:
            self.move_to_end(key)
        except KeyError:  # another thread has made the cache forget it
            pass
        return value
