# SPDX-License-Identifier: Apache-2.0
"""The managers of one group by their keys."""

from __future__ import annotations

from typing import Any

from magi_attention.common._lru import LruCache
from magi_attention.compat.keys.key import DistAttnRuntimeKey
from magi_attention.compat.keys.manager import DistAttnRuntimeMgr


class DistAttnRuntimeDict(LruCache):
    """Managers by key; the key that was asked for longest ago leaves when max_size is passed."""

    def __init__(self, max_size: int, *args: Any, **kwargs: Any) -> None:
        self.recent: DistAttnRuntimeKey | None = None
        super().__init__(max_size, *args, **kwargs)

    def __setitem__(self, key: DistAttnRuntimeKey, value: DistAttnRuntimeMgr) -> None:
        super().__setitem__(key, value)
        self.recent = key

    def __delitem__(self, key: DistAttnRuntimeKey) -> None:
        super().__delitem__(key)
        if self.recent is key:
            self.recent = None

    def get(self, key: DistAttnRuntimeKey, default: Any = None) -> Any:
        """The manager of a key, which counts as asked for, or default."""
        if key not in self:
            return default
        self.recent = key
        return super().get(key, default)

    def touch(self, key: DistAttnRuntimeKey) -> None:
        """Makes a stored key the most recent one."""
        self.move_to_end(key)
        self.recent = key

    def get_most_recent_key(self) -> DistAttnRuntimeKey | None:
        """The key made or asked for last, or None."""
        return self.recent if self.recent in self else next(reversed(self), None)
