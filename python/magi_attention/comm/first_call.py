# SPDX-License-Identifier: Apache-2.0
"""What ranks compare before a plan's first call moves anything, and before a later one with other
options does: what the plan does not hold.

Rounds go over the group's store: every rank writes what it was given, rank 0 writes a decision, and
all read that. A rank that refuses its arguments writes so and goes on without waiting; the others
then end with its words instead of at their deadline. Nothing of it touches a device.
"""

from __future__ import annotations

import datetime
import json
import secrets
import time

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from magi_attention._group_holders import caches_groups, holds_groups, is_destroyed
from magi_attention.comm.later_calls import MAX_TEXT, LaterCalls
from magi_attention.comm.lives import Lives
from magi_attention.comm.store import PatientStore
from magi_attention.errors import CommError

_PREFIX = "magi_attention/first_call"
_TOLD, _WITHDRAWN = b"told", b"withdrawn"  # what becomes of a refusal of rank 0, whichever is first
_POLL_SECONDS = 0.002
# What others wait beyond rank 0, which names the rank that it waited for in vain.
_GRACE = datetime.timedelta(seconds=1)


class FirstCalls:
    """One rank's side of the rounds of a group. Ranks go through them in the same order; a round in
    which a rank refused is not counted by that rank until the others have been told. Of groups of
    one store and name, which may follow each other, ranks make the objects in the same order.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        num_ranks: int,
        timeout: datetime.timedelta,
        global_ranks: str = "",
    ) -> None:
        self._store, self._rank, self._num_ranks = PatientStore(store, timeout), rank, num_ranks
        self._timeout, self._global_ranks = timeout, global_ranks
        store = self._store
        self._group = store.add(f"{_PREFIX}/groups/{rank}", 1)  # this rank's groups, counted
        self.later = LaterCalls(store, rank, num_ranks)
        self.lives = Lives(store, rank, num_ranks, self._group)
        self.have_agreed = False  # in any round
        self._round = 0
        self._has_refused = False  # in this round
        self._num_calls = 0  # of this plan, until all ranks came to one
        self._num_refusals, self._first_refusal = 0, 1  # of rank 0, in all and in this round
        self._old_keys: list[str] = []  # of this rank, of the round before
        self._given: dict[str, str] = {}  # of the attention under way
        self._num_begun = 0  # attentions of the group's plans

    def begin(self, given: dict[str, str]) -> None:
        """Notes what an attention is given that begins now. Ranks begin the same ones in turn."""
        self._given = given
        self._num_begun += 1
        self.later.begin()

    def compare(self, given: dict[str, str]) -> None:
        """Collective: CommError on all ranks where they were not given the same, or where one has
        refused; it names the ranks and what differs.
        """
        try:
            self._compare(given)
        except CommError as error:
            error.args = (naming(str(error), self._global_ranks),)
            raise

    def _compare(self, given: dict[str, str]) -> None:
        self._num_calls += 1
        self.later.withdraw()
        while True:
            self._leave_refused_round()
            entry = {"given": given, "begun": self._num_begun}
            self._store.set(self._key(self._rank), json.dumps(entry))
            if self._rank == 0:
                decision = self._judge()
                self._store.set(self._key("decision"), json.dumps(decision))
            else:
                decision = self._read_decision()
            self._end_round(have_all_come=decision.get("code") in (None, CommError.PLAN_MISMATCH))
            if decision.get("by") != self._rank:  # else of a refusal before this call
                break
        if decision.get("is_later"):
            self._num_calls -= 1  # as at the rank that refused
        if "code" in decision:
            raise CommError(decision["text"], decision["code"])
        if not self.have_agreed:
            self.have_agreed = True
            self.later.agreed(decision["name"])
            self.lives.watch()

    def join_those_who_compare(self) -> None:
        """Takes part, if this rank has waited long for rows, in a round that another rank has
        begun instead of sending them, as its options are not those that ranks have agreed on.
        CommError on all ranks then. A rank that is about to begin a later attention is no reason.
        """
        for rank in range(self._num_ranks):
            key = self._key(rank)
            if rank == self._rank or not self._store.check([key]):
                continue
            entry = json.loads(self._store.get(key))
            if "given" in entry and entry["begun"] < self._num_begun:
                self.compare(self._given)
                return

    def refuse(self, error: Exception) -> None:
        """Tells the other ranks, now or when they come, that this one raises error."""
        self._num_calls += 1
        self._leave_refused_round()
        text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_TEXT]
        self._has_refused = True
        if self._rank == 0:
            self._num_refusals += 1
            decision = _refusal(0, text) | {"call": self._num_calls, "serial": self._num_refusals}
            self._store.set(self._key("decision"), json.dumps(decision))
        else:
            self._store.set(
                self._key(self._rank), json.dumps({"refused": text, "call": self._num_calls})
            )

    def _read_decision(self) -> dict:
        """Returns that of rank 0. One that rank 0 withdrew before anybody was told of it does not
        count.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        while True:
            found = self._wait_or_look("decision", 0, self._timeout + _GRACE)
            if isinstance(found, str):
                if not self._leave_without_rank_0():
                    continue
                self._num_calls -= 1
                raise CommError(_refusal(0, found)["text"], CommError.ABORTED)
            decision = json.loads(found)
            if decision.get("by") != 0:
                return decision
            told = self._key(f"told/{decision['serial']}")
            is_over = self._store.check([told]) and self._store.get(told) == _TOLD
            if not is_over and self._is_history(decision) and time.monotonic() < deadline:
                continue
            if self._settled(told, _TOLD) == _TOLD:
                return decision
            if time.monotonic() > deadline:
                text = f"rank {self._rank} waited for rank 0 to call again what it had refused"
                raise CommError(text, CommError.TIMEOUT)
            time.sleep(_POLL_SECONDS)

    def _leave_refused_round(self) -> None:
        """Goes on to the next round where the others know of this rank's refusal in this one."""
        if not self._has_refused:
            return
        self._has_refused = False
        decision = self._key("decision")
        if self._rank == 0:
            told = self._key(f"told/{self._num_refusals}")
            if self._settled(told, _WITHDRAWN) == _TOLD:
                self._end_round()
        elif self._store.check([decision]):
            found = json.loads(self._store.get(decision))
            told = self._key(f"told/{found.get('serial')}")
            if found.get("by") != 0 or (
                self._store.check([told]) and self._store.get(told) == _TOLD
            ):
                self._end_round()

    def _end_round(self, have_all_come: bool = False) -> None:
        """have_all_come: every rank has come to this round, so nobody reads those before it."""
        if have_all_come:
            self._num_calls = 0
            for key in self._old_keys:
                self._store.delete_key(key)
            self._old_keys.clear()
        self._old_keys.append(self._key(self._rank))
        if self._rank == 0:
            told = range(self._first_refusal, self._num_refusals + 1)
            self._old_keys += [self._key("decision"), *(self._key(f"told/{n}") for n in told)]
            self._first_refusal = self._num_refusals + 1
        self._round += 1

    def _judge(self) -> dict:
        """Returns, if all were given the same, a name that no other group has; else a code and a
        text.
        """
        given = []
        for rank in range(self._num_ranks):
            try:
                entry = self._entry_of(rank)
            except CommError as error:
                return {"code": error.code, "text": str(error)}
            if "refused" in entry:
                return _refusal(rank, entry["refused"]) | {"is_later": "call" not in entry}
            given.append(entry["given"])
        differing = _differences(given)
        if not differing:
            return {"name": secrets.token_hex(8)}
        return {
            "code": CommError.PLAN_MISMATCH,
            "text": "ranks differ in " + "; in ".join(differing),
        }

    def _entry_of(self, rank: int) -> dict:
        deadline = time.monotonic() + self._timeout.total_seconds()
        while True:
            found = self._wait_or_look(rank, rank, self._timeout)
            if isinstance(found, str):
                return {"refused": found}
            entry = json.loads(found)
            if not self._is_history(entry) or time.monotonic() > deadline:
                return entry

    def _is_history(self, refusal: dict) -> bool:
        """Whether a refusal was of an earlier call, one in which this rank refused as well: the
        other rank will come to this one.
        """
        is_history = refusal.get("call", self._num_calls) < self._num_calls
        if is_history:
            time.sleep(_POLL_SECONDS)
        return is_history

    def _wait_or_look(self, name: int | str, rank: int, timeout: datetime.timedelta) -> bytes | str:
        """Returns what a rank says here; else the words in which it refused this attention of a
        plan that runs, of which it tells where such attentions are waited for.
        """
        what = "to make the first call with this plan or these options"
        return self.lives.wait_for(
            self._key(name), rank, timeout, what, lambda: self.later.refusal_before_begin(rank)
        )

    def _leave_without_rank_0(self) -> bool:
        """Takes back what this rank compares in a round that rank 0 has refused. False, and it
        stands, where rank 0 calls again: that says so before it reads.
        """
        key = self._key(self._rank)
        entry = self._store.get(key)
        self._store.delete_key(key)
        if self.later.still_refuses(0):
            return True
        self._store.set(key, entry)
        return False

    def _settled(self, key: str, value: bytes) -> bytes:
        """The value of a key, which becomes `value` where it has none yet."""
        return self._store.compare_set(key, "", value.decode())

    def _key(self, name: int | str) -> str:
        return f"{_PREFIX}/{self._group}/{self._round}/{name}"


def _refusal(rank: int, text: str) -> dict:
    text = f"rank {rank} refused its arguments before anything was sent: {text}"
    return {"code": CommError.ABORTED, "text": text, "by": rank}


def _differences(given: list[dict[str, str]]) -> list[str]:
    """One text for each name whose values differ; ranks of one value are named together."""
    found = []
    for name in dict.fromkeys(name for each in given for name in each):
        ranks: dict[str, list[str]] = {}
        for rank, each in enumerate(given):
            ranks.setdefault(each.get(name, "none"), []).append(str(rank))
        if len(ranks) > 1:
            parts = (
                f"rank{'s' * (len(who) > 1)} {', '.join(who)} {'have' if len(who) > 1 else 'has'} "
                f"{value}"
                for value, who in ranks.items()
            )
            found.append(f"{name}: {', '.join(parts)}")
    return found


_of_groups: dict[dist.ProcessGroup, FirstCalls] = {}
caches_groups(_of_groups.clear, lambda group: _of_groups.pop(group, None))


def global_ranks_of(group: dist.ProcessGroup) -> str:
    """ " (ranks 0, 1 of cp_group are global ranks 2, 3)"; "" where they have the same numbers."""
    ranks = dist.get_process_group_ranks(group)
    own = list(range(len(ranks)))
    if ranks == own:
        return ""
    of_group, of_all = (", ".join(map(str, each)) for each in (own, ranks))
    return f" (ranks {of_group} of cp_group are global ranks {of_all})"


def naming(text: str, global_ranks: str) -> str:
    """Adds to a text that names ranks of a group their numbers among all processes."""
    return text if global_ranks in text else text + global_ranks


def first_calls_of(group: dist.ProcessGroup | None) -> FirstCalls | None:
    """Those of a group of several ranks that is alive, else None."""
    if group is None or is_destroyed(group) or dist.get_world_size(group) == 1:
        return None
    found = _of_groups.get(group)
    if found is None:
        store, size = _get_process_group_store(group), dist.get_world_size(group)
        rank, timeout = dist.get_rank(group), timeout_of(group)
        found = FirstCalls(store, rank, size, timeout, global_ranks_of(group))
        _of_groups[group] = found
    return found


def begin(group: dist.ProcessGroup | None, given: dict[str, str]) -> None:
    """FirstCalls.begin of a group that has compared something, else nothing."""
    found = _of_groups.get(group)
    if found is not None:
        found.begin(given)


class Backwards:
    """Tells the ranks of a group of the backward passes of a plan."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        holds_groups(self, "_group")

    def begin(self) -> None:
        """Notes one that begins now. Ranks begin the same ones in turn, as attentions."""
        begin(self._group, {"function": "gradient of attention"})

    def refuse(self, error: Exception) -> None:
        """Tells the others, which may wait in the next one, that this rank raises error there."""
        found = _of_groups.get(self._group)
        if found is not None:
            found.later.refuse(error)


def timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    """The time after which the group's own collectives fail."""
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout
        except (RuntimeError, AttributeError):  # the group has none for this device
            continue
    return dist.distributed_c10d.default_pg_timeout
