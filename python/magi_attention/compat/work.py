# SPDX-License-Identifier: Apache-2.0
"""Communication under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class GeneralWork:
    """A thing to wait for: anything with a method wait(), such as a Work of
    torch.distributed, a list of these, or None.
    """

    def __init__(self, work: Any = None) -> None:
        for part in work if isinstance(work, (list, tuple)) else (work,):
            if part is not None and not callable(getattr(part, "wait", None)):
                raise TypeError(f"work holds a {type(part).__name__}; allowed: what has wait()")
        self.work = work

    def wait(self) -> None:
        """Waits, the first time. CommError or the work's own error where communication failed."""
        work, self.work = self.work, None
        for part in work if isinstance(work, (list, tuple)) else (work,):
            if part is not None:
                part.wait()


class WorkWithPostProcessFn:
    """One call under way: wait_post_process ends it and gives its result."""

    def __init__(
        self,
        work: Any = None,
        post_process_fn: Callable[..., Any] | None = None,
        async_op: bool = False,
    ) -> None:
        """work: what GeneralWork takes; without async_op it is waited for here. post_process_fn
        gives the result after the wait, from the arguments of wait_post_process.
        """
        self.work = work if isinstance(work, GeneralWork) else GeneralWork(work)
        self.async_op = async_op
        self._post_process = post_process_fn
        self._is_over = False
        if not async_op:
            self.work.wait()

    def wait_post_process(self, *args: Any, **kwargs: Any) -> Any:
        """The result: that of post_process_fn, called with these arguments after a wait; None where
        there is none. CommError where communication failed, RuntimeError the second time.
        """
        if self._is_over:
            raise RuntimeError("wait_post_process was called before; allowed: one call")
        self.work.wait()
        result = None if self._post_process is None else self._post_process(*args, **kwargs)
        self._is_over, self._post_process = True, None
        return result
