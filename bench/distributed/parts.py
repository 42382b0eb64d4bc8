# SPDX-License-Identifier: Apache-2.0
"""The parts of a record over the GPUs of a host, as bench/dist_record.py runs them: what each runs,
writes and is predicted to take. A part that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from distributed import kept
from distributed.sides import BASELINES, MASKS, OF_BACKENDS, ULYSSES_MASKS, allows

ROOT = pathlib.Path(__file__).resolve().parents[2]
_BENCH = ROOT / "bench" / "dist_attention.py"
_LLAMA = ROOT / "examples" / "llama_cp" / "long.py"
_START_SECONDS = 30.0  # processes, torch, connections
SETTINGS = ("default", "degree0", "degree1", "degree2")
_FAULTS = {"kills": 20, "stops": 4, "absent": 4, "plans": 4, "memory": 4, "steps": 2000}
_FAULTS_ON_CPU = {**dict.fromkeys(_FAULTS, 1), "memory": 0, "steps": 20}


@dataclass(frozen=True)
class Sizes:
    """What a record measures. `tokens`: per rank, from those of the first rows on."""

    device: str
    tokens: tuple[int, int, int]
    warm_tokens: int  # of a cell whose memory is that of a process that has run once
    heads: str
    head_dim: int
    cells: tuple[str, ...]  # more options of the cells
    faults: dict[str, int]
    llama: tuple[str, ...]  # options of the example
    masks: tuple[str, ...] = MASKS


ON_GPUS = Sizes("cuda", (8192, 16384, 32768), 256, "64,8", 128, (), _FAULTS, ("--tokens", "131072"))
# The same commands in seconds, to try them without a GPU.
ON_CPU = Sizes(
    "cpu", (64, 96, 128), 32, "8,8", 16, ("--seconds", "0.1", "--rounds", "2"), _FAULTS_ON_CPU,
    ("--cpu", "--tokens", "512", "--steps", "2"), ("causal", "varlen_causal"),
)  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """What a record is made with: ranks, sizes, its folder, the folder of a build and the minutes
    that one part may take.
    """

    ranks: int
    sizes: Sizes
    out: pathlib.Path
    build: pathlib.Path
    minutes: float = 9.0


@dataclass(frozen=True)
class Part:
    """commands: argument lists that run one after the other, given the minutes that are left;
    files: what they write; is_done: whether nothing is left to run.
    """

    name: str
    about: str
    commands: list[Callable[[float], list[str]]]
    files: list[pathlib.Path]
    is_done: Callable[[], bool]
    seconds: float
    variables: dict[str, str] = field(default_factory=dict)


def torchrun(ranks: int, *command) -> list[str]:
    """Processes of one host, on a port that is free."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(ranks), *map(str, command)]


def has_json(path: pathlib.Path) -> bool:
    """Whether a file was written to its end."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return True


def make_parts(setup: Setup) -> dict[str, Part]:
    """By name, in the order in which they are run."""
    small, middle, large = setup.sizes.tokens
    made = [
        _host(setup),
        _calibration(setup),
        _rows(setup, "rows-8k", small, BASELINES),
        _rows(setup, "rows-16k", middle, BASELINES),
        _rows(setup, "rows-32k", large, ()),
        _ulysses(setup, small),
        _memory(setup, middle),
        _queries(setup, small),
        *(_scaling(setup, ranks, small) for ranks in (1, 2, 4) if ranks < setup.ranks),
        *_tests(setup),
        _faults(setup),
        _llama(setup),
    ]
    return {part.name: part for part in made}


def _host(setup: Setup) -> Part:
    path = setup.out / "host.json"
    command = torchrun(
        setup.ranks, _BENCH, "--device", setup.sizes.device, "--masks", "", "--sides", "",
        "--heads", setup.sizes.heads, "--head-dim", setup.sizes.head_dim, "--rows", path,
    )  # fmt: skip
    about = "host time of a layer, and of a mask that was not seen before"
    return Part("host", about, [lambda _: command], [path], lambda: has_json(path), 90.0)


def _calibration(setup: Setup) -> Part:
    """The constants of the cost model, found before the cells that simulate is judged by."""
    path = setup.out / "costs.json"
    command = [str(setup.build / "bin" / "magi"), "doctor", "--calibrate", "--out", str(path)]
    about = "constants of the cost model, for the error of magi simulate"
    commands = [lambda _: command] if setup.sizes.device == "cuda" else []
    files = [path] if commands else []
    return Part("calibrate", about, commands, files, lambda: not commands or has_json(path), 60.0)


def _cells(setup: Setup, name: str, about: str, ranks: int, tokens: int, **choices) -> Part:
    """Cells of all masks of a number of tokens. choices: masks, settings, work and sides, as
    bench/dist_attention.py takes them.
    """
    sizes, path = setup.sizes, setup.out / f"{name}.jsonl"
    masks = choices.get("masks", sizes.masks)
    settings, work = choices.get("settings", ("default",)), choices.get("work", ("keys",))
    heads_kv = int(sizes.heads.split(",")[1])
    sides = [side for side in choices.get("sides", ()) if allows(side, ranks, heads_kv)]

    def command(minutes: float) -> list[str]:
        return torchrun(
            ranks, _BENCH, "--device", sizes.device, "--out", path, "--resume", "--minutes",
            f"{minutes:.2f}", "--masks", ",".join(masks), "--tokens", tokens, "--settings",
            ",".join(settings), "--work", ",".join(work), "--sides", ",".join(sides), "--heads",
            sizes.heads, "--head-dim", sizes.head_dim, "--no-host", *sizes.cells,
        )  # fmt: skip

    names = [s if mode == "keys" else f"{s}+work={mode}" for s in settings for mode in work]

    def is_done() -> bool:
        cells = kept.read_cells(path)
        return all(
            any(kept.is_measured(cell, mask, tokens, ranks, [*names, *sides]) for cell in cells)
            for mask in masks
        )

    seconds = _START_SECONDS + _seconds_of_cells(sizes, masks, tokens, ranks, len(names + sides))
    return Part(name, about, [command], [path], is_done, seconds)


def _seconds_of_cells(sizes: Sizes, masks, tokens: int, ranks: int, sides: int) -> float:
    import torch

    from distributed.cells import Options
    from distributed.sides import Problem

    heads_q, heads_kv = map(int, sizes.heads.split(","))
    shape = (heads_q, heads_kv, sizes.head_dim)
    options = Options(
        settings=[], baselines=[], shape=shape, dtype=torch.float32,
        device=torch.device(sizes.device), seconds=4.0, rounds=3, exposed=True,
    )  # fmt: skip
    problems = [Problem(mask, tokens * ranks, shape) for mask in masks]
    return sum(kept.cell_seconds(problem, ranks, sides, options) for problem in problems)


def _rows(setup: Setup, name: str, tokens: int, sides) -> Part:
    beside = f", beside {', '.join(sides)}" if sides else ""
    about = f"all masks, {tokens:,} tokens a rank, forward and backward{beside}"
    return _cells(setup, name, about, setup.ranks, tokens, settings=SETTINGS, sides=sides)


def _memory(setup: Setup, tokens: int) -> Part:
    """Each mask has processes of its own: windows between GPUs stay as large as they were."""
    sizes, commands, files = setup.sizes, [], []

    def is_measured(path: pathlib.Path) -> bool:
        return any(cell["tokens"] == tokens for cell in kept.read_cells(path))

    for mask in sizes.masks:
        path = setup.out / f"memory-{mask}.jsonl"
        command = torchrun(
            setup.ranks, _BENCH, "--device", sizes.device, "--out", path, "--masks", mask,
            "--tokens", f"{sizes.warm_tokens},{tokens}", "--settings", "default", "--sides", "",
            "--heads", sizes.heads, "--head-dim", sizes.head_dim, "--no-host", "--no-exposed",
            "--seconds", 0.1, "--rounds", 1,
        )  # fmt: skip
        commands.append(lambda _, path=path, command=command: [] if is_measured(path) else command)
        files.append(path)
    cells = _seconds_of_cells(sizes, sizes.masks, tokens, setup.ranks, 1)
    return Part(
        "memory", f"bytes beyond inputs and results, {tokens:,} tokens a rank", commands, files,
        lambda: all(map(is_measured, files)), _START_SECONDS * len(files) + cells / 2,
    )  # fmt: skip


def _queries(setup: Setup, tokens: int) -> Part:
    about = "queries that move as well, where the cost model chooses so and wherever they may"
    masks = ("varlen_causal", "causal")
    work = ("keys", "auto", "queries")
    return _cells(setup, "queries", about, setup.ranks, tokens, masks=masks, work=work)


def _ulysses(setup: Setup, tokens: int) -> Part:
    about = "beside Ulysses with the kernels of every package that is installed"
    masks = tuple(mask for mask in ULYSSES_MASKS if mask in setup.sizes.masks)
    sides = ("ulysses", *OF_BACKENDS[:2])
    return _cells(setup, "ulysses", about, setup.ranks, tokens, masks=masks, sides=sides)


def _scaling(setup: Setup, ranks: int, tokens: int) -> Part:
    about = f"the same tokens a rank on {ranks} of the ranks"
    masks = tuple(mask for mask in ULYSSES_MASKS if mask in setup.sizes.masks)
    return _cells(setup, f"scaling-{ranks}", about, ranks, tokens, masks=masks)


def _tests(setup: Setup) -> list[Part]:
    """Those of the Python package that take as many GPUs as there are, in two parts."""
    folder = ROOT / "tests" / "python"
    if setup.sizes.device == "cpu":
        named = {"tests-pipeline": ["test_world_sizes.py"]}
    else:
        named = {
            "tests-pipeline": ["test_gpu_ranks.py"],
            "tests-transports": ["test_gpu_transports.py", "test_nccl.py"],
        }
    made = []
    for name, files in named.items():
        path = setup.out / f"{name}.jsonl"
        paths = [str(folder / file) for file in files]

        def command(minutes: float, path=path, paths=paths) -> list[str]:
            options = [f"--results={path}", f"--minutes={minutes:.2f}", "-p", "no:cacheprovider"]
            return [
                *(sys.executable, "-m", "pytest", "-q", "--tb=short"),
                *("-p", "distributed.kept_results", *options, *paths),
            ]

        def is_done(path=path) -> bool:
            lines = kept.read_cells(path)
            return bool(lines) and lines[-1] == {"finished": True}

        about = "tests over ranks against float64: " + ", ".join(files)
        variables = {"PYTHONPATH": f"{ROOT / 'bench'}:{folder}"}
        made.append(Part(name, about, [command], [path], is_done, 420.0, variables))
    return made


def _faults(setup: Setup) -> Part:
    program = str(setup.build / "bin" / "fault_runs")
    transport = "nvlink" if setup.sizes.device == "cuda" else "shm"
    commands, files = [], []
    for kind, count in setup.sizes.faults.items():
        if count == 0:
            continue
        path = setup.out / f"faults-{kind}.json"
        command = [program, "--transport", transport, "--ranks", str(setup.ranks)]
        command += [f"--{kind}", str(count), "--out", str(path)]
        commands.append(lambda _, command=command, path=path: [] if has_json(path) else command)
        files.append(path)
    about = "ranks that are killed, stopped or absent, other plans, no memory; random masks"
    return Part("faults", about, commands, files, lambda: all(map(has_json, files)), 300.0)


def _llama(setup: Setup) -> Part:
    path = setup.out / "llama.json"
    runs = [cp for cp in (1, 2, 4, 8) if setup.ranks % cp == 0]

    def command(minutes: float) -> list[str]:
        options = ["--out", path, "--minutes", f"{minutes:.2f}", *setup.sizes.llama]
        return torchrun(setup.ranks, _LLAMA, *options)

    def is_done() -> bool:
        if not has_json(path):
            return False
        done = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return all(f"cp {cp}" in done for cp in runs)

    about = "a Llama with FSDP2 at 128k tokens, cp 1, 2, 4, 8: losses, tokens per second"
    return Part("llama", about, [command], [path], is_done, 420.0)
