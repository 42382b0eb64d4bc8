# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: each has a network, an address, a name and an identifier of its running
system of its own, and a wire joins them. Nothing of them is left when the program ends.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import tempfile

# Both hosts are shells that wait for the end of their input; the first one makes the second.
_BECOME = """
mount --bind hosts /etc/hosts
mount --bind boot$1 /proc/sys/kernel/random/boot_id
echo host$1 > /proc/sys/kernel/hostname
ip address add 10.77.0.$((1 + $1))/24 dev wire
ip link set lo up
ip link set wire up
echo $$
"""
_START = """
exec 3<&0
unshare --net --uts --mount sh -ec '
  until ip link show dev wire; do sleep 0.01; done > ip.out 2>&1
  set 1
  . ./become
  exec cat' <&3 &
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link add wire type veth peer name wire netns $!
set 0
. ./become
exec cat <&3
"""
_FIRST_PORT = 29500


def enter(places: list[str]) -> None:
    """Moves this process, which has no other thread, to a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    for path in places:
        place = os.open(path, os.O_RDONLY)
        if libc.setns(place, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns({path})")
        os.close(place)


class Hosts:
    """The hosts host0 and host1. RuntimeError where this process may not make namespaces."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        names = "127.0.0.1 localhost\n10.77.0.1 host0\n10.77.0.2 host1\n"
        texts = dict(hosts=names, become=_BECOME)
        for host in range(2):
            texts[f"boot{host}"] = f"{host}0000000-0000-4000-8000-000000000000\n"
        for name, text in texts.items():
            (folder / name).write_text(text)
        self._kinds = ["net", "uts", "mnt"]
        of_user = []
        if os.geteuid() != 0:
            self._kinds.insert(0, "user")
            of_user = ["--user", "--map-root-user"]
        command = ["unshare", *of_user, "--net", "--uts", "--mount", "sh", "-ec", _START]
        self._process = subprocess.Popen(
            command, cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        told = sorted(self._process.stdout.readline().strip() for _ in range(2))
        if "" in told:
            self.stop()
            raise RuntimeError(f"no emulated hosts: {self._process.stderr.read()}")
        own = str(self._process.pid)
        self.processes = [int(own), *(int(pid) for pid in told if pid != own)]
        self._num_launches = 0

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def places(self, host: int) -> list[str]:
        """The namespaces of a host, for enter()."""
        return [f"/proc/{self.processes[host]}/ns/{kind}" for kind in self._kinds]

    def rendezvous(self) -> dict[str, str]:
        """Where the ranks of a new launch meet, as torchrun tells them."""
        self._num_launches += 1
        return dict(MASTER_ADDR="host0", MASTER_PORT=str(_FIRST_PORT + self._num_launches))

    def wire_bytes(self) -> int:
        """Bytes that have gone over the wire so far, both ways, headers included."""
        for line in pathlib.Path(f"/proc/{self.processes[0]}/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == "wire":
                numbers = counts.split()
                return int(numbers[0]) + int(numbers[8])
        raise RuntimeError("host0 has no wire")
