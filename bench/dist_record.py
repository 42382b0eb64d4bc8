#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the record over the GPUs of a host in parts of at most 10 minutes, and its figures:

    dist_record.py --ranks 8 --out FOLDER --list           parts, how long each takes, what is done
    dist_record.py --ranks 8 --out FOLDER --part NAME...   runs these (without --part: all)
    dist_record.py --ranks 8 --out FOLDER --figures FILE   figures of what FOLDER has, and why
                                                           others are missing
Every part writes its files in FOLDER as it goes, and one that was stopped goes on where it was:
cells, tests and trainings that are there are not repeated. --machine NAME records the figures with
tools/record in bench/results/dist-NAME.json. --device cpu does the same with small sizes over
processes without GPUs, in some minutes; its figures are not for the record.

It needs torch and pytest beside this Python, magi_attention on its path, and a build with the
programs magi and fault_runs (--build). Exit codes: 0 done, 1 a part failed, 2 usage, 3 the machine
does not suit, 4 something is left to run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

from distributed import record
from distributed.parts import ON_CPU, ON_GPUS, ROOT, Part, Setup, make_parts

PART_SECONDS = 575
_ENDING_SECONDS = 15
RANKS = (2, 4, 8)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, required=True, help="2, 4 or 8")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the record")
    parser.add_argument("--part", action="append", default=[], help="may be given several times")
    parser.add_argument("--list", action="store_true", help="say what there is to run")
    parser.add_argument("--figures", type=pathlib.Path, help="rows for tools/record to write")
    parser.add_argument("--machine", help="with --figures: h200x8, say; records them")
    parser.add_argument("--minutes", type=float, default=9.0, help="that a part may take, to 9.5")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    given = parser.parse_args()
    if given.ranks not in RANKS:
        parser.error(f"--ranks is {given.ranks}; allowed: 2, 4 or 8")
    if not 0 < given.minutes <= 9.5:
        parser.error(f"--minutes is {given.minutes}; allowed: above 0, up to 9.5")
    if given.machine and not given.figures:
        parser.error("--machine without --figures; allowed: with the file of the figures")
    if given.machine and given.device == "cpu":
        parser.error("--machine with --device cpu; allowed: figures of GPUs alone are recorded")
    return given


def trouble_of(given: argparse.Namespace) -> str:
    """Why this machine cannot run the parts; empty where it can."""
    for program in ("magi", "fault_runs"):
        path = given.build / "bin" / program
        if not path.exists():
            return f"--build has no bin/{program}; allowed: a folder where it was built"
    if given.device == "cpu":
        return ""
    import torch

    count = torch.cuda.device_count()
    if count < given.ranks:
        return f"--ranks is {given.ranks}; allowed: up to {count}, the GPUs of this machine"
    for one in range(given.ranks):
        for other in range(given.ranks):
            if one != other and not torch.cuda.can_device_access_peer(one, other):
                return (
                    f"GPU {one} cannot access the memory of GPU {other}; allowed: GPUs that are "
                    "peers of each other, which the record is of"
                )
    return ""


def state_of(part: Part) -> str:
    if part.is_done():
        return "done"
    return "begun" if any(path.exists() for path in part.files) else "left"


def list_parts(parts: dict[str, Part], minutes: float) -> None:
    for part in parts.values():
        runs = math.ceil(part.seconds / 60 / minutes)
        in_runs = f" in {runs} runs" if runs > 1 else ""
        taken = f"{part.seconds / 60:5.1f} min{in_runs}"
        print(f"{part.name:17} {state_of(part):6} {taken}  {part.about}")
        print(" " * 25 + "writes " + ", ".join(path.name for path in part.files or []))


def run_command(command: list[str], environment: dict[str, str], seconds: float) -> int:
    """Its exit code; 124 where it was stopped with all that it started. torchrun ends its ranks
    when it is asked to end, and would leave them on their GPUs if it were killed.
    """
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return abs(process.wait(seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return 124


def run_part(part: Part, minutes: float) -> int:
    """The worst exit code of its commands; 124: stopped, in time to end within 10 minutes."""
    print(f"{part.name}: {part.about}; {part.seconds / 60:.1f} min predicted", flush=True)
    begin, codes = time.monotonic(), [0]
    environment = {**os.environ, **part.variables}
    if "PYTHONPATH" in part.variables:
        paths = [part.variables["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    for make_command in part.commands:
        spent = time.monotonic() - begin
        if len(codes) > 1 and spent > 60 * minutes:
            break  # left for another run
        left = PART_SECONDS - spent
        command = make_command(max(minutes - spent / 60, 0.001))
        if not command:
            continue  # its file is there
        codes.append(run_command(command, environment, max(left, 1.0)))
    state = state_of(part)
    print(f"{part.name}: {state} after {(time.monotonic() - begin) / 60:.1f} min", flush=True)
    return max(codes)


def run_parts(names: list[str], parts: dict[str, Part], minutes: float) -> int:
    """The exit code: 1 where a command failed, 4 where something is left."""
    code = 0
    for name in names:
        part = parts[name]
        if part.is_done():
            print(f"{name}: done before")
            continue
        if run_part(part, minutes):
            code = 1
        elif not part.is_done() and code == 0:
            code = 4
    return code


def write_figures(given: argparse.Namespace, setup: Setup) -> int:
    """Rows of what there is; 4 where a figure of the record is missing."""
    rows = record.rows_of(setup)
    given.figures.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missing = record.missing_of(setup, rows)
    for row in rows:
        print(f"{row['name']:52s} {row['value']:.4g} {row['unit']}")
    for name, why in missing.items():
        print(f"{name:52s} missing: {why}")
    if given.machine:
        target = ROOT / "bench" / "results" / f"dist-{given.machine}.json"
        subprocess.run(
            [
                *(sys.executable, ROOT / "tools" / "record", "--move", "--out", target),
                *("--rows", given.figures, "--machine", record.machine_of(setup)),
                *("--command", f"bench/dist_record.py --ranks {given.ranks}"),
            ],
            check=True,
        )
        print(f"recorded in {target}")
    return 4 if missing else 0


def main() -> int:
    given = parse()
    sizes = ON_GPUS if given.device == "cuda" else ON_CPU
    setup = Setup(given.ranks, sizes, given.out.resolve(), given.build.resolve(), given.minutes)
    parts = make_parts(setup)
    for name in given.part:
        if name not in parts:
            print(f"--part is {name}; allowed: {', '.join(parts)}", file=sys.stderr)
            return 2
    if given.list:
        list_parts(parts, given.minutes)
        return 0
    if given.figures:
        return write_figures(given, setup)
    trouble = trouble_of(given)
    if trouble:
        print(trouble, file=sys.stderr)
        return 3
    given.out.mkdir(parents=True, exist_ok=True)
    return run_parts(given.part or list(parts), parts, given.minutes)


if __name__ == "__main__":
    sys.exit(main())
