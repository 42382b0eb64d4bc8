# SPDX-License-Identifier: Apache-2.0
"""Communication under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WorkWithPostProcessFn:
    """One call under way: wait_post_process ends it and gives its result."""

    def __init__(
        self,
        work: Any = None,
        post_process_fn: Callable[..., Any] | None = None,
        async_op: bool = False,
    ) -> None:
        """work: anything with a method wait(), such as a Work of torch.distributed, a list of
        these, or None; without async_op it is waited for here. post_process_fn gives the result
        after the wait, from the arguments of wait_post_process.
        """
        parts = work if isinstance(work, (list, tuple)) else (work,)
        self._works = [part for part in parts if part is not None]
        for part in self._works:
            if not callable(getattr(part, "wait", None)):
                raise TypeError(f"work holds a {type(part).__name__}; allowed: what has wait()")
        self.async_op = async_op
        self._post_process = post_process_fn
        self._is_over = False
        if not async_op:
            self._wait()

    def _wait(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def wait_post_process(self, *args: Any, **kwargs: Any) -> Any:
        """The result: that of post_process_fn, called with these arguments after a wait; None where
        there is none. CommError where communication failed, RuntimeError the second time.
        """
        if self._is_over:
            raise RuntimeError("wait_post_process was called before; allowed: one call")
        self._wait()
        result = None if self._post_process is None else self._post_process(*args, **kwargs)
        self._is_over, self._post_process = True, None
        return result
