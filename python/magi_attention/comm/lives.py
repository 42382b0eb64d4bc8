# SPDX-License-Identifier: Apache-2.0
"""Whether the processes of a group's other ranks have ended. Every process listens at a port and
accepts nobody; a connection to it breaks when the process ends, and stays when it is stopped.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable

from magi_attention.comm.store import PatientStore
from magi_attention.errors import CommError

_PREFIX = "magi_attention/lives"
_MOST_WAITING = 1024  # connections that the system keeps for this process
_MOST_PEERS = 64  # of larger groups, ranks know rank 0 alone, and rank 0 all
_GRACE_TIME = 1.0  # seconds in which the end of a process is seen elsewhere
_Listener = tuple[socket.socket, list[socket.socket]]

_listeners: list[_Listener] = []  # of this process, at most one, with those who watch it
_lock = threading.Lock()  # ranks may be threads of one process


def _listener() -> socket.socket:
    with _lock:
        if not _listeners:
            has_both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if has_both else socket.AF_INET
            made = socket.create_server(
                ("", 0), family=family, backlog=_MOST_WAITING, dualstack_ipv6=has_both
            )
            made.setblocking(False)
            _listeners.append((made, []))
        listener, watchers = _listeners[0]
        with contextlib.suppress(OSError):
            while True:
                watchers.append(listener.accept()[0])
                watchers[-1].setblocking(False)
        # Of groups that are gone nothing is left.
        for gone in [each for each in watchers if _has_ended(each)]:
            gone.close()
            watchers.remove(gone)
        return listener


def _close_in_child() -> None:
    """Ends watch a rank alone, not the processes that it has forked."""
    global _lock  # another thread may have held it as this process forked
    _lock = threading.Lock()
    for listener, watchers in _listeners:
        for each in (listener, *watchers):
            each.close()
    _listeners.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _machine() -> str:
    """Names what an address of this process is good for: the machine and its network."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"


def _address(host: str | None) -> str:
    """Returns the address of this machine, as those see it who reach `host`."""
    kind, *_, place = socket.getaddrinfo(host or "localhost", 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing
        return probe.getsockname()[0]


class Lives:
    """One rank's view of the processes of a group. Where machines do not let ranks connect, it
    knows of no end. group: its number among those of the store, equal on all ranks.
    """

    def __init__(self, store: PatientStore, rank: int, num_ranks: int, group: int = 0) -> None:
        self.store, self.rank, self.num_ranks, self._group = store, rank, num_ranks, group
        self._peers: dict[int, socket.socket] = {}
        self._hosts = {rank: socket.gethostname()}  # known ones, by rank
        self._ended: set[int] = set()
        with contextlib.suppress(OSError):
            port = _listener().getsockname()[1]
            entry = {"machine": _machine(), "address": _address(store.host), "port": port}
            entry["host"] = self._hosts[rank]
            store.set(f"{_PREFIX}/{rank}", json.dumps(entry))

    def __del__(self) -> None:
        for peer in getattr(self, "_peers", {}).values():
            peer.close()

    def watch(self) -> None:
        """Connects to the ranks that have told where they are."""
        others = range(self.num_ranks)
        if self.num_ranks > _MOST_PEERS and self.rank > 0:
            others = range(1)
        for other in others:
            self._connect(other)

    def _connect(self, rank: int) -> None:
        key = f"{_PREFIX}/{rank}"
        if rank in (self.rank, *self._peers) or not self.store.check([key]):
            return
        entry = json.loads(self.store.get(key))
        self._hosts[rank] = entry["host"]
        with contextlib.suppress(OSError):
            is_here = entry["machine"] == _machine()
            address = "127.0.0.1" if is_here else entry["address"]
            kind, *_, place = socket.getaddrinfo(address, entry["port"], type=socket.SOCK_STREAM)[0]
            peer = socket.socket(kind, socket.SOCK_STREAM)
            peer.setblocking(False)
            self._peers[rank] = peer
            try:
                peer.connect(place)
            except BlockingIOError:
                pass
            except ConnectionRefusedError:
                if is_here:
                    self._ended.add(rank)

    def named(self, ranks: list[int]) -> str:
        """ "ranks 0 on host1, 2 on host2", or without hosts if all known ranks are on one."""
        known = self._hosts if len(set(self._hosts.values())) > 1 else {}
        names = [f"{rank} on {known[rank]}" if rank in known else str(rank) for rank in ranks]
        return f"rank{'s' * (len(ranks) != 1)} {', '.join(names) or 'none'}"

    def wait_for(
        self, key: str, rank: int, timeout: datetime.timedelta, what: str,
        look: Callable[[], str | None] = lambda: None,
    ) -> bytes | str:  # fmt: skip
        """PatientStore.wait_for for a key that `rank` will set. CommError names the rank, and its
        host if known, also if its process has ended.
        """

        def look_at_rank() -> str | None:
            if self.has_ended(rank) and not self.store.check([key]):
                raise CommError("its process has ended", CommError.PEER_DIED)
            return look()

        self.has_ended(rank)  # reads the rank's host
        own, awaited = (self.named([each]) for each in (self.rank, rank))
        return self.store.wait_for(key, timeout, f"{own} waited for {awaited} {what}", look_at_rank)

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank is known to have ended."""
        if rank not in self._ended and rank not in self._peers:
            self._connect(rank)
        peer = self._peers.get(rank)
        if peer is not None and _has_ended(peer):
            self._ended.add(rank)
        return rank in self._ended

    def find_ended(self, ranks: list[int]) -> list[int]:
        """Those of the ranks that have ended, or do so soon. What the group's first rank to ask has
        found holds for all: other ranks may have ended since because of it.
        """
        deadline, ended = time.monotonic() + _GRACE_TIME, []
        while not ended and time.monotonic() <= deadline:
            time.sleep(0.01)
            ended = [rank for rank in ranks if self.has_ended(rank)]
        if ended:
            key, own = f"{_PREFIX}/ended/{self._group}", json.dumps(ended)
            with contextlib.suppress(Exception):  # of a store whose host has ended or stopped too
                found = json.loads(self.store.within(_GRACE_TIME).compare_set(key, "", own))
                ended = found if set(found) <= set(ranks) else ended
        return ended


def _has_ended(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True
    except OSError:  # it lives, or it was never reached
        return False
