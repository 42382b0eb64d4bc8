# SPDX-License-Identifier: Apache-2.0
"""bench/dist_record.py: its parts, what they keep, and the figures of a folder."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import torch

import dist_bench_cases as cases

if not cases.BENCH.exists():
    pytest.skip("the benches are not here", allow_module_level=True)

import dist_record
from distributed import kept, record
from distributed.cells import DIRECTIONS
from distributed.parts import ON_CPU, ON_GPUS, SETTINGS, Setup, _allowed_sides, make_parts
from distributed.sides import MASKS, Problem

SCRIPT = cases.BENCH / "dist_record.py"


def run(*options, build: pathlib.Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    if build is not None:
        command += ["--build", str(build)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def build(tmp_path):
    """A folder with programs that fail."""
    folder = tmp_path / "build"
    (folder / "bin").mkdir(parents=True)
    for name in ("magi", "fault_runs"):
        (folder / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def side(kind: str, speed: float, **more) -> dict:
    """Of a cell, as bench/distributed/cells.py writes it on a GPU."""
    half = {"ms": 1e3 / speed, "low_ms": 1.0, "high_ms": 9.0, "tflops": speed, "share": speed / 100}
    if kind == "ours":
        more = {"stages": 1, "balance": 1.0, "is_moving_queries": False, "forward_bytes": 4096.0,
                "predicted_forward_ms": 1.0, "predicted_backward_ms": 2.0, **more}  # fmt: skip
    if kind == "baseline":
        more = {"forward_bytes": 8192, "backward_bytes": 8192, **more}
    if kind != "alone":
        half |= {"without_communication_ms": 1.0, "exposed_ms": 0.5}
    return {
        "kind": kind, "error": 1e-3, "extra_bytes": 1e6, "outside_torch_bytes": 1e6,
        "forward": half, "backward": dict(half), **more,
    }  # fmt: skip


def cell(mask: str, tokens: int, ranks: int, sides: dict[str, dict]) -> dict:
    return {
        "mask": mask, "tokens": tokens, "ranks": ranks, "slices": 3, "area": 1 << 20, "rounds": 9,
        "failed": {}, "machine": f"{ranks} x a GPU",
        "sides": {"alone": side("alone", 100.0), **sides},
    }  # fmt: skip


def fill(setup: Setup) -> None:
    """The files of a record whose parts have all run, with GPU figures made up."""
    setup.out.mkdir(exist_ok=True)
    names = _allowed_sides(("ulysses", "ring", "allgather", "usp", "usp4"), setup.ranks, "64,8")
    small = setup.sizes.tokens[0]
    for part, tokens in zip(("rows-8k", "rows-16k", "rows-32k"), setup.sizes.tokens):
        ours = {name: side("ours", 90.0, memory_ratio=2.0) for name in SETTINGS}
        others = {name: side("baseline", 60.0) for name in names if part != "rows-32k"}
        cells = [cell(mask, tokens, setup.ranks, {**ours, **others}) for mask in MASKS]
        kept.write_cells(setup.out / f"{part}.jsonl", cells)
    for mask in MASKS:
        made = cell(mask, setup.sizes.tokens[1], setup.ranks, {"default": side("ours", 90.0)})
        made["sides"]["default"]["memory_ratio"] = 1.01
        kept.write_cells(setup.out / f"memory-{mask}.jsonl", [made])
    moving = {
        f"default+work={mode}": side("ours", 99.0, is_moving_queries=True)
        for mode in ("auto", "queries")
    }
    cells = [
        cell(mask, small, setup.ranks, {"default": side("ours", 90.0), **moving})
        for mask in ("varlen_causal", "causal")
    ]
    kept.write_cells(setup.out / "queries.jsonl", cells)
    for ranks in (1, 2, 4):
        if ranks < setup.ranks:
            cells = [cell(m, small, ranks, {"default": side("ours", 100.0)}) for m in MASKS]
            kept.write_cells(setup.out / f"scaling-{ranks}.jsonl", cells)
    host = {"dist.host_us": 80.0, "dist.new_mask_ms": 1.0, "dist.host_floor_us": 40.0}
    rows = [{"name": name, "value": value, "unit": "us"} for name, value in host.items()]
    (setup.out / "host.json").write_text(json.dumps(rows))
    tests = [{"test": "a", "outcome": "passed", "seconds": 1.0},
             {"test": "b", "outcome": "skipped", "seconds": 0.0}, {"finished": True}]  # fmt: skip
    for name in ("tests-pipeline", "tests-transports"):
        kept.write_cells(setup.out / f"{name}.jsonl", tests)
    for kind in setup.sizes.faults:
        row = {"name": f"reliability.{kind}.nvlink", "value": 20, "unit": "trials"}
        (setup.out / f"faults-{kind}.json").write_text(json.dumps([row]))
    (setup.out / "costs.json").write_text("{}")
    names = ["cp 1", "cp 1, reversed", *(f"cp {n}" for n in (2, 4, 8) if n <= setup.ranks)]
    llama = {
        "about": {"tokens": 131072},
        "runs": {name: {"losses": [3.0, 2.0], "tokens_per_second": 1e6} for name in names},
        "compared": {"noise": 1e-4, "distance": 1e-4, "over_noise": 1.0},
    }
    (setup.out / "llama.json").write_text(json.dumps(llama))


@pytest.mark.parametrize("ranks", [4, 8])
def test_every_must_of_a_whole_record_has_its_figure(tmp_path, ranks, monkeypatch):
    setup = Setup(ranks, ON_GPUS, tmp_path / "record", tmp_path)
    fill(setup)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "magi").touch()
    given = []
    monkeypatch.setattr(
        record.simulate_error, "cells", lambda _, steps: given.append(steps) or [("", 0.9)]
    )
    rows = record.rows_of(setup)
    assert record.missing_of(setup, rows) == {}
    found = {row["name"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    prefix = f"dist{ranks}"
    wanted = {
        "causal.forward.8k": 0.9, "varlen_causal.over_ulysses.backward.8k": 1.5,
        "over_baseline": 1.5, "default_over_best": 1.0, "extra_memory": 1.01,
        "qo.varlen_causal.8k": 1.1, "over_1.full.forward.8k": 0.9, "tests.passed": 2,
        "tests.failed": 0, "llama.128k.cp4.tokens_per_second": 1e6, "faults.kills.nvlink": 20,
        "simulate.error": 1.1111,
    }  # fmt: skip
    assert {name: found[f"{prefix}.{name}"] for name in wanted} == wanted
    assert given[0]["cells"][0]["step"]["forward"] == {"ms": 1e3 / 90, "low_ms": 1, "high_ms": 9}
    assert all(part.is_done() for part in make_parts(setup).values())
    assert record.machine_of(setup) == f"{ranks} x a GPU"


def test_what_is_missing_says_why(tmp_path):
    setup = Setup(4, ON_GPUS, tmp_path, tmp_path)
    missing = record.missing_of(setup, record.rows_of(setup))
    assert missing["dist.host_us"] == "part host is left"
    assert missing["dist4.full.forward.16k"] == "part rows-16k is left"
    assert missing["dist4.extra_memory"] == "part memory is left"
    assert missing["dist4.qo.varlen_causal.8k"] == "part queries is left"
    assert not any(name.startswith("dist8") for name in missing)
    broken = cell("full", 16384, 4, {})
    broken["failed"] = {"default": "off by 1"}
    kept.write_cells(tmp_path / "rows-16k.jsonl", [broken])
    missing = record.missing_of(setup, record.rows_of(setup))
    assert missing["dist4.full.forward.16k"] == "default failed: off by 1"
    still = side("ours", 90.0)
    cells = [cell("varlen_causal", 8192, 4, {"default": still, "default+work=auto": still})]
    kept.write_cells(tmp_path / "queries.jsonl", cells)
    missing = record.missing_of(setup, record.rows_of(setup))
    assert missing["dist4.qo.varlen_causal.8k"] == "the cost model moves no queries there"


def test_cells_that_are_kept(tmp_path):
    path = tmp_path / "cells.jsonl"
    assert kept.read_cells(path) == []
    one = cell("full", 64, 2, {"default": side("ours", 90.0)})
    path.write_text(json.dumps(one) + '\n{"mask": "cau')  # killed while it wrote
    assert kept.read_cells(path) == [one]
    assert kept.is_measured(one, "full", 64, 2, ["default"])
    assert not kept.is_measured(one, "full", 64, 2, ["default", "ring"])
    assert not kept.is_measured(one, "full", 64, 4, ["default"])
    assert kept.without([one], "full", 64, 2) == [] and kept.without([one], "full", 8, 2) == [one]


def test_predicted_seconds_grow_with_the_work():
    options = types.SimpleNamespace(device=torch.device("cuda"), seconds=4.0, rounds=5)
    shape = (64, 8, 128)

    def seconds(mask, tokens, sides):
        return kept.cell_seconds(Problem(mask, tokens, shape), 8, sides, options)

    # 4 * 2^36 * 64 * 128 operations forward: 5 s by the rate that is counted with.
    assert 60 < seconds("full", 1 << 18, 1) < 300
    assert seconds("causal", 1 << 18, 1) < seconds("full", 1 << 18, 1)
    assert seconds("causal", 1 << 16, 1) < seconds("causal", 1 << 16, 4) < 60


def test_parts_of_gpus_are_short(tmp_path):
    for ranks in (2, 4, 8):
        parts = make_parts(Setup(ranks, ON_GPUS, tmp_path, tmp_path))
        assert "scaling-1" in parts and ("scaling-4" in parts) == (ranks == 8)
        for part in parts.values():
            assert part.files and not part.is_done()
            if part.name != "rows-32k":  # which goes on in a second run
                assert part.seconds < 600, (part.name, part.seconds)
            assert all(command(9.0) for command in part.commands)


def test_a_part_on_cpus_goes_on_where_it_was(tmp_path, build):
    out = tmp_path / "record"
    options = ("--ranks", 2, "--out", out, "--device", "cpu", "--part", "queries")
    stopped = run(*options, "--minutes", 0.001, build=build)
    assert stopped.returncode == 4, stopped.stderr
    assert "left for another run" in stopped.stderr and (out / "queries.jsonl").exists()
    done = run(*options, build=build)
    assert done.returncode == 0, done.stderr
    cells = kept.read_cells(out / "queries.jsonl")
    assert [c["mask"] for c in cells] == ["varlen_causal", "causal"]
    assert "queries: done before" in run(*options, build=build).stdout
    # Cells that the figures are tested with have the form of those that are written.
    real, made = cells[0], cell("causal", 64, 2, {"default": side("ours", 90.0)})
    assert set(real) == set(made)
    for name in ("alone", "default"):
        optional = {"without_communication_ms", "exposed_ms"}
        assert set(real["sides"][name]) == set(made["sides"][name])
        for direction in DIRECTIONS:
            forms = [of["sides"][name][direction].keys() - optional for of in (real, made)]
            assert forms[0] == forms[1]
    kept.write_cells(out / "queries.jsonl", cells[:1])
    assert run(*options, build=build).returncode == 0
    again = kept.read_cells(out / "queries.jsonl")
    assert again[0] == cells[0] and [c["mask"] for c in again] == ["varlen_causal", "causal"]


def test_tests_in_parts(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "def test_good(): assert 'AGAIN' not in os.environ\n"
        "def test_left_out(): pytest.skip('no')\n"
        "def test_later(): assert 'AGAIN' in os.environ\n"
    )
    path = tmp_path / "results.jsonl"

    def pytest_run(*options, **variables) -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "distributed.kept_results"]
        command += ["-p", "no:cacheprovider", f"--results={path}", *options, "test_it.py"]
        environment = {"PYTHONPATH": str(cases.BENCH), "PATH": "/usr/bin", **variables}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, check=False
        ).returncode

    assert pytest_run("--minutes=0") == 0 and kept.read_cells(path) == []
    assert pytest_run() == 1
    found = {line["test"]: line["outcome"] for line in kept.read_cells(path)}
    assert found == {
        "test_it.py::test_good": "passed", "test_it.py::test_left_out": "skipped",
        "test_it.py::test_later": "failed",
    }  # fmt: skip
    assert pytest_run(AGAIN="1") == 0  # the one that failed, alone
    lines = kept.read_cells(path)
    assert lines[-1] == {"finished": True}
    assert [line["outcome"] for line in lines[:-1]] == ["passed", "skipped", "passed"]


def test_a_command_that_takes_too_long_is_ended(tmp_path):
    """It is asked to end, which torchrun hands on to its ranks."""
    told = tmp_path / "told"
    script = f"trap 'echo told >{told}; exit 3' TERM; while :; do sleep 0.1; done"
    assert dist_record.run_command(["sh", "-c", script], dict(os.environ), 1.0) == 124
    assert told.read_text() == "told\n"
    assert dist_record.run_command(["sh", "-c", "exit 3"], dict(os.environ), 20.0) == 3


def test_bad_input(tmp_path, build):
    out = ("--out", tmp_path / "record")
    for options, code, text in (
        (("--ranks", 3, *out), 2, "--ranks is 3; allowed: 2, 4 or 8"),
        (("--ranks", 4, *out, "--part", "rows"), 2, "--part is rows; allowed: host, calibrate, "),
        (("--ranks", 4, *out, "--minutes", 12), 2, "--minutes is 12.0; allowed: above 0, up to"),
        (("--ranks", 4, *out, "--machine", "m"), 2, "--machine without --figures"),
    ):
        done = run(*options, build=build)
        assert done.returncode == code and text in done.stderr, (options, done.stderr)
    done = run("--ranks", 4, *out, build=tmp_path)
    assert done.returncode == 3 and "--build has no bin/magi" in done.stderr
    if torch.cuda.device_count() < 8:
        done = run("--ranks", 8, *out, build=build)
        count = torch.cuda.device_count()
        assert done.returncode == 3 and f"allowed: up to {count}, the GPUs" in done.stderr


def test_gpus_that_are_no_peers_are_refused(build, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a, b) != (1, 3))
    given = types.SimpleNamespace(build=build, device="cuda", ranks=2)
    assert dist_record.trouble_of(given) == ""
    given.ranks = 4
    assert dist_record.trouble_of(given).startswith("GPU 1 cannot access the memory of GPU 3; ")


def test_the_list_of_parts(tmp_path):
    done = run("--ranks", 8, "--out", tmp_path, "--list")
    assert done.returncode == 0, done.stderr
    for text in ("rows-8k", "left", "writes llama.json", "min in 2 runs  all masks, 32,768"):
        assert text in done.stdout, done.stdout


def test_a_program_that_fails_is_said(tmp_path, build):
    options = ("--ranks", 2, "--out", tmp_path / "record", "--device", "cpu", "--part", "faults")
    assert run(*options, build=build).returncode == 1
    assert ON_CPU.faults["kills"] == 1
