#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two emulated hosts on this machine, by the code of the tests: each has a network, an address and
a name of its own, and torchrun starts two ranks on each (docs/hosts.md).

  hosts.exact        share of plans (masks x placements x what travels), whose results and gradients
                     in float64 are those of one process
  hosts.cross.bytes  bytes that the transport sent to the other host, over those of the rows that
                     keys of the mask come to, once each
  hosts.cross.wire   what the wire between the hosts carried, headers included, over the same
  hosts.kills        ranks that were ended at a random moment, and named with their host within 2 s
                     to all others, over gloo; on a machine with a GPU as often over NCCL
  hosts.gpus         on such a machine, with one rank a host: share of plans whose results in
                     bfloat16 are those of one GPU, over the library's nccl and torch's; bytes count
                     there too. The ranks share the GPU where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))

from hosts import Hosts  # noqa: E402
from ranks import launch  # noqa: E402

CASES = ROOT / "tests/python/host_cases.py"
TORCHRUN = pathlib.Path(torch.distributed.__file__).with_name("run.py")
OF_DEVICE = {"cpu": dict(ranks=4), "cuda": dict(ranks=2, MAGI_ATTENTION_TRANSPORT="nccl")}
SOON = 2.0  # seconds
UNITS = {"hosts.exact": "share", "hosts.gpus": "share", "hosts.kills": "kills"}
# Ranks are forked from a process that then may not have asked CUDA.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def told(run: tuple[int, str]) -> list[dict]:
    """The lines of JSON of all ranks."""
    code, output = run
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if code > 0 or not lines:
        sys.exit(output)
    return lines


def share_of_right(lines: list[dict]) -> float:
    for line in lines:
        if line["wrong"]:
            print("wrong:", line["wrong"])
    return min(1 - len(line["wrong"]) / line["of"] for line in lines)


def exact(hosts: Hosts, every: int) -> dict[str, float]:
    """By torchrun, which finds the host of rank 0 by its name."""
    place = hosts.rendezvous()
    run = launch(
        TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"{place['MASTER_ADDR']}:{place['MASTER_PORT']}",
        str(CASES), "cpu", f"exact:{every}", ranks=2, hosts=hosts,
    )  # fmt: skip
    return {"hosts.exact": share_of_right(told(run))}


def cross(hosts: Hosts, device: str) -> dict[str, float]:
    before = hosts.wire_bytes()
    lines = told(launch(CASES, device, "cross:1024", hosts=hosts, **OF_DEVICE[device]))
    wire = hosts.wire_bytes() - before
    counted, planned = (sum(line[name] for line in lines) for name in ("counted", "planned"))
    return {"hosts.cross.bytes": counted / planned, "hosts.cross.wire": wire / planned}


def kills(hosts: Hosts, count: int, device: str) -> int:
    named, ranks = 0, OF_DEVICE[device]["ranks"]
    transport = OF_DEVICE[device].get("MAGI_ATTENTION_TRANSPORT", "process_group")
    for seed in range(count):
        victim = (seed + ranks // 2) % ranks  # of the second host first
        delay = random.Random(seed).randrange(10, 400)
        case = f"lost:{victim}:{delay}"
        lines = told(launch(CASES, device, case, hosts=hosts, **OF_DEVICE[device]))
        name = f"rank {victim} on host{2 * victim // ranks}"
        is_named = len(lines) == ranks - 1 and all(
            name in line["text"] and line["seconds"] < SOON and line["transport"] == transport
            for line in lines
        )
        if not is_named:
            print(f"{device}, kill {seed}:", lines)
        named += is_named
    return named


def on_gpus(hosts: Hosts, every: int) -> dict[str, float]:
    shares = []
    for transport in ("nccl", "auto"):
        given = OF_DEVICE["cuda"] | dict(MAGI_ATTENTION_TRANSPORT=transport)
        run = launch(CASES, "cuda", f"exact:{every}", hosts=hosts, **given)
        shares.append(share_of_right(told(run)))
    return {"hosts.gpus": min(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=int, default=1, help="which plans of the product run")
    parser.add_argument("--devices", default="cuda,cpu" if torch.cuda.device_count() else "cpu")
    options = parser.parse_args()
    hosts, found = Hosts(), {"hosts.kills": 0}

    def note(more: dict[str, float]) -> None:
        found.update(more)
        rows = [{"name": n, "value": v, "unit": UNITS.get(n, "ratio")} for n, v in found.items()]
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    for device in options.devices.split(","):
        named = kills(hosts, options.kills, device)
        note({"hosts.kills": found["hosts.kills"] + named})
        note((exact if device == "cpu" else on_gpus)(hosts, options.every))
        note(cross(hosts, device))
    hosts.stop()


if __name__ == "__main__":
    main()
