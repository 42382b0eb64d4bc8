# SPDX-License-Identifier: Apache-2.0
"""What ranks say at a group's store once their calls run: that one has aborted, or refuses its
arguments of an attention in which others wait for its rows. Those look here where rows are late.
"""

from __future__ import annotations

import json

from magi_attention.comm.store import PatientStore
from magi_attention.errors import CommError

_PREFIX = "magi_attention/later_calls"
MAX_TEXT = 2000  # of an error, in characters


class LaterCalls:
    """One rank's side. Ranks begin the attentions of a group in the same order; a refused attention
    has not begun. Transports have names that no other one has or had, and on which their ranks have
    agreed: the store may still hold what was said in a group before, which had this group's name.
    """

    def __init__(self, store: PatientStore, rank: int, num_ranks: int) -> None:
        self._store, self._rank, self._num_ranks = store, rank, num_ranks
        self._refusals: str | None = None  # where they are; nobody waits before that is known
        self._num_begun = 0
        self._num_refusals, self._num_refusals_before = 0, 0  # since an attention began; until it
        self._waits: tuple[str | None, int] = None, 0  # transport and exchange last waited for
        self._reported: dict[int, tuple[int, int]] = {}  # by refusal_before_begin

    def agreed(self, name: str) -> None:
        """The ranks have agreed on a name that no other group has; the first one names the
        refusals.
        """
        if self._refusals is None:
            self._refusals = f"{_PREFIX}/refused/{name}"

    def begin(self) -> None:
        """An attention begins: what this rank has refused before it is history."""
        self.withdraw()
        self._num_refusals_before, self._num_refusals = self._num_refusals, 0
        self._num_begun += 1

    def refuse(self, error: Exception) -> None:
        """Tells the ranks that wait in the next attention that this one raises error there."""
        self._num_refusals += 1
        if self._refusals is None:
            return
        entry = {
            "text": " ".join(f"{type(error).__name__}: {error}".split())[:MAX_TEXT],
            "next": self._num_begun + 1,
            "count": self._num_refusals,
        }
        self._store.set(self._refusal_key(self._rank), json.dumps(entry))
        self._store.set(self._refusals, "")  # there are some

    def withdraw(self) -> None:
        """This rank calls again what it refused, and compares: it says so before the others see
        what it compares.
        """
        if self._num_refusals > 0 and self._refusals is not None:
            self._store.set(self._refusal_key(self._rank), "{}")

    def still_refuses(self, rank: int) -> bool:
        """Whether a rank has not called again since refusal_before_begin returned its refusal."""
        entry = self._entry(rank)
        return (entry.get("next"), entry.get("count")) == self._reported.get(rank)

    def _entry(self, rank: int) -> dict:
        key = self._refusal_key(rank)
        return json.loads(self._store.get(key)) if self._store.check([key]) else {}

    def refusal_before_begin(self, rank: int) -> str | None:
        """The words in which a rank refused the attention that is about to begin, once; None where
        this rank refused as often, or where the other one calls again.
        """
        if self._refusals is None or not self._store.check([self._refusals]):
            return None
        entry = self._entry(rank)
        if entry.get("next") != self._num_begun + 1 or entry["count"] <= self._num_refusals:
            return None
        refusal = entry["next"], entry["count"]
        if self._reported.get(rank) == refusal:
            return None
        self._reported[rank] = refusal
        return entry["text"]

    def abort(self, transport: str, reason: str) -> None:
        """Tells the ranks that wait for a transport; the first one counts."""
        self._store.compare_set(self._abort_key(transport), "", reason[:MAX_TEXT])

    def check(self, transport: str | None) -> None:
        """CommError where a rank has aborted the transport, or has refused the attention that is
        under way. A refusal of an earlier call, which this rank refused as well, is none of it.
        """
        if transport is not None and self._store.check([key := self._abort_key(transport)]):
            raise CommError(self._store.get(key).decode(), CommError.ABORTED)
        # Asked first, as ranks that are merely late are many and groups may be large.
        if self._refusals is None or not self._store.check([self._refusals]):
            return
        for rank in range(self._num_ranks):
            key = self._refusal_key(rank)
            if rank == self._rank or not self._store.check([key]):
                continue
            entry = json.loads(self._store.get(key))
            if entry.get("next") != self._num_begun or entry["count"] <= self._num_refusals_before:
                continue
            text = f"rank {rank} refused its arguments: {entry['text']}"
            raise CommError(text, CommError.ABORTED)

    def wait(self, transport: str | None, exchange: int) -> None:
        """Says, once for each, that this rank waits for an exchange, in which rows are late."""
        if transport is not None and self._waits != (transport, exchange):
            self._waits = transport, exchange
            self._store.set(self._wait_key(transport, self._rank), str(exchange))

    def find_absent(self, transport: str | None, exchange: int) -> list[int]:
        """Those ranks that wait for none so late, where this one waits in vain; of several the
        ones that are farthest behind, for which others may wait too.
        """
        if transport is None or self._waits != (transport, exchange):
            return []
        waits = {}
        for rank in range(self._num_ranks):
            key = self._wait_key(transport, rank)
            waits[rank] = int(self._store.get(key)) if self._store.check([key]) else 0
        least = min(waits.values())
        return [rank for rank, last in waits.items() if last == least < exchange]

    def _wait_key(self, transport: str, rank: int) -> str:
        return f"{_PREFIX}/waits/{transport}/{rank}"

    def _abort_key(self, transport: str) -> str:
        return f"{_PREFIX}/aborted/{transport}"

    def _refusal_key(self, rank: int) -> str:
        return f"{self._refusals}/{rank}"
