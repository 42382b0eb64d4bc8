# SPDX-License-Identifier: Apache-2.0
"""The store of a process group. No request to it waits for ever."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from magi_attention.errors import CommError

# Seconds between questions for a key: the longer one waits, the longer they are.
_LEAST_PAUSE, _MOST_PAUSE = 0.0005, 0.05
_LOOK_SECONDS = 0.5


class PatientStore:
    """A group's store, of which every question ends by the group's timeout: over TCP, questions to
    a process that was stopped would never end.
    """

    def __init__(self, store: dist.Store, timeout: datetime.timedelta) -> None:
        self._store, self._seconds = store, timeout.total_seconds()
        self._is_far = isinstance(_root(store), dist.TCPStore)
        self._unanswered: threading.Thread | None = None  # it holds the store

    def within(self, seconds: float) -> PatientStore:
        """The same store, of which a question ends by so many seconds."""
        return PatientStore(self._store, datetime.timedelta(seconds=seconds))

    def _ask(self, name: str, *arguments):
        function = getattr(self._store, name)
        if not self._is_far:
            return function(*arguments)
        found: list = []

        def ask() -> None:
            try:
                found.append((function(*arguments), None))
            except Exception as error:
                found.append((None, error))

        asked = self._unanswered
        if asked is None or not asked.is_alive():
            asked, self._unanswered = threading.Thread(target=ask, daemon=True), None
            asked.start()
            asked.join(self._seconds)
        if asked.is_alive():  # whoever has waited once does not again
            self._unanswered = asked
            text = f"the group's store gave no answer within its timeout of {self._seconds:g} s"
            raise CommError(f"{text}: the process that hosts it may be stopped", CommError.TIMEOUT)
        result, error = found.pop()
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # it holds this frame

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        return self._ask("get", key)

    def check(self, keys: list[str]) -> bool:
        return self._ask("check", keys)

    def add(self, key: str, amount: int) -> int:
        return self._ask("add", key, amount)

    def delete_key(self, key: str) -> bool:
        return self._ask("delete_key", key)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return self._ask("compare_set", key, expected, value)

    def wait_for(
        self,
        key: str,
        timeout: datetime.timedelta,
        who: str,
        look: Callable[[], str | None] = lambda: None,
    ) -> bytes | str:
        """The value of a key once it has one, or what look() gives, which is called now and then.
        CommError that begins with `who` where the key gets no value.
        """
        begin, seconds = time.monotonic(), timeout.total_seconds()
        next_look = begin + _LOOK_SECONDS
        try:
            while not self.check([key]):
                now = time.monotonic()
                if now - begin > seconds:
                    raise CommError(f"timeout after {seconds:g} s", CommError.TIMEOUT)
                if now > next_look:
                    next_look = now + _LOOK_SECONDS
                    seen = look()
                    if seen is not None:
                        return seen
                time.sleep(min(max((now - begin) / 8, _LEAST_PAUSE), _MOST_PAUSE))
            return self.get(key)
        except Exception as error:
            code = error.code if isinstance(error, CommError) else CommError.SYSTEM
            raise CommError(f"{who}: {error}", code) from error

    @property
    def host(self) -> str | None:
        """Returns, for a store over TCP, the machine that it is on."""
        return _root(self._store).host if self._is_far else None


def _root(store: dist.Store) -> dist.Store:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
