# SPDX-License-Identifier: Apache-2.0
"""Counts of long seeded runs: in parts, with progress, and resumed where they stopped.

Cases of a run are numbered; a run is a seed and the numbers [0, cases). The tally of a run is a
file with its seed and how many cases have held, written after each part. A case that does not
hold ends the run with what its program says, and is no part of any count. Several workers run
parts side by side; counted are those before which all others have held.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments_of(text, cases, seed=20261122):
    """Parser of the flags that all counted runs share."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="rows for tools/record")
    parser.add_argument("--cases", type=int, default=cases, help=f"cases in all (default {cases})")
    parser.add_argument("--seed", type=int, default=seed, help=f"default {seed}")
    parser.add_argument("--tally", help="goes on where the run of this file stopped")
    parser.add_argument("--seconds", type=float, help="begins no part after so many seconds")
    parser.add_argument(
        "--workers", type=int, default=1, help="parts side by side, each on its share of the cores"
    )
    return parser


def read_tally(path, seed):
    """How many cases of the run have held."""
    if path is None or not path.exists():
        return 0
    tally = json.loads(path.read_text(encoding="utf-8"))
    if tally["seed"] != seed:
        raise SystemExit(f"{path} counts seed {tally['seed']}, not {seed}")
    return tally["held"]


def write_row(path, name, held, unit):
    rows = [{"name": name, "value": held, "unit": unit}]
    pathlib.Path(path).write_text(json.dumps(rows), encoding="utf-8")


def write_tally(path, seed, held):
    """Writes the file whole: a run that is ended while writing goes on from the part before."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"seed": seed, "held": held}) + "\n", encoding="utf-8")
    partial.replace(path)


def bound_threads(workers):
    """Threads that start processes, each of them and its processes on its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= workers <= len(cores):
        raise SystemExit(f"--workers is {workers}; allowed: 1 to {len(cores)}, one a core")
    shares = [cores[i::workers] for i in range(workers)]
    return concurrent.futures.ThreadPoolExecutor(
        workers, initializer=lambda: os.sched_setaffinity(0, shares.pop())
    )


def sizes_that_hold(arguments, first, part, run_part):
    """Runs parts from case `first` on, and yields their sizes in the order of cases."""
    seconds = float("inf") if arguments.seconds is None else arguments.seconds
    end = time.monotonic() + seconds

    def run(begin, size):
        if time.monotonic() >= end:
            return 0
        run_part(arguments.seed, begin, size)
        return size

    running = collections.deque()
    with bound_threads(arguments.workers) as threads:
        while first < arguments.cases or running:
            while first < arguments.cases and len(running) < 2 * arguments.workers:
                size = min(part, arguments.cases - first)
                running.append(threads.submit(run, first, size))
                first += size
            try:
                held = running.popleft().result()
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
            if held == 0:
                return
            yield held


def count(name, unit, arguments, part, run_part):
    """Runs parts of `part` cases by run_part(seed, first, count), which raises where one does not
    hold, and writes the row after each: what is counted is true whenever the run is ended."""
    path = pathlib.Path(arguments.tally) if arguments.tally else None
    held = read_tally(path, arguments.seed)
    start, before = time.monotonic(), held
    write_row(arguments.out, name, held, unit)
    for size in sizes_that_hold(arguments, held, part, run_part):
        held += size
        write_tally(path, arguments.seed, held)
        write_row(arguments.out, name, held, unit)
        rate = (held - before) / (time.monotonic() - start)
        left = (arguments.cases - held) / rate
        print(
            f"  {name}: {held:,} of {arguments.cases:,} {unit}, {rate:.1f} a second,"
            f" {left / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )


def run_program(program):
    """A run_part for count() by a program of tests/reliability, which tells what does not hold."""
    if not program.exists():
        raise SystemExit(f"{program} is missing: build it first")

    def run_part(seed, first, cases):
        flags = ["--seed", str(seed), "--first", str(first), "--cases", str(cases)]
        done = subprocess.run([program, *flags], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{program.name} {' '.join(flags)}\n{done.stdout}{done.stderr}")

    return run_part
