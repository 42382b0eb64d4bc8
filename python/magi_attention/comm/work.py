# SPDX-License-Identifier: Apache-2.0
"""Communication under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WorkWithPostProcessFn:
    """One call under way: wait_post_process ends it and gives its result."""

    def __init__(self, finish: Callable[[], Any], async_op: bool) -> None:
        """finish waits and returns the result; without async_op it is called here."""
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        if not async_op:
            self.wait_post_process()

    def wait_post_process(self, *outputs: Any) -> Any:
        """The result, after a wait the first time; outputs, the original's arguments, are not
        read. CommError where communication failed.
        """
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self._result = finish()
        return self._result
