# SPDX-License-Identifier: Apache-2.0
"""`python -m magi_attention doctor`: what it says, and that a wrong result does not pass."""

import json
import os
import subprocess
import sys

import pytest
import torch

from magi_attention import _doctor, backends
from magi_attention.__main__ import main
from magi_attention._native.library import library_file, version

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


def run(*arguments, **variables):
    given = {k: v for k, v in os.environ.items() if k not in LAUNCHER} | variables
    return subprocess.run(
        [sys.executable, "-m", "magi_attention", *arguments],
        env=given, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_the_command_tells_of_the_machine():
    found = run("doctor", "--json")
    assert found.returncode in (0, 3), found.stderr + found.stdout
    report = json.loads(found.stdout)
    assert report["exit_code"] == found.returncode
    assert report["torch"] == torch.__version__ and report["libmagi"] == version()
    assert report["library"] == library_file() and os.path.exists(report["library"])
    assert [row["values"] for row in report["backends"]] == [
        list(row.values) for row in backends.table()
    ]
    devices = [one["device"] for one in report["attention"]]
    assert devices[0] == "cpu" and devices[-1] == "two ranks on the cpu"
    assert not any(one["findings"] for one in report["attention"])


def test_other_arguments_are_refused(capsys):
    assert main(["doctor", "--fast"]) == 2 == main(["fly"])
    assert main(["--help"]) == 0 and "`memory`" in capsys.readouterr().out
    assert main([]) == 0 and "libmagi" in capsys.readouterr().out


def quiet(monkeypatch, findings=()):
    """What the doctor finds where attention is not run, but said to be so."""
    found = [_doctor.Check("cpu", "the library's own", list(findings))]
    monkeypatch.setattr(_doctor, "checks_of", lambda rows: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_only_right_attention_and_a_fit_environment_are_ok(monkeypatch):
    quiet(monkeypatch)
    report = _doctor.examine("1.1.1")
    assert report["exit_code"] == _doctor.OK
    assert _doctor.as_text(report).endswith("attention runs on this machine and is right")
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("WORLD_SIZE", "4")
    report = _doctor.examine("1.1.1")
    assert report["exit_code"] == _doctor.UNFIT
    text = _doctor.as_text(report)
    assert "variable        RANK=4\n" in text
    assert "unfit: RANK is 4; allowed: 0 to 3, as WORLD_SIZE is 4" in text
    quiet(monkeypatch, ["dq: error 1, allowed 0.1"])
    report = _doctor.examine("1.1.1")
    assert report["exit_code"] == _doctor.WRONG
    assert "cpu, the library's own: WRONG\n                dq: error" in _doctor.as_text(report)
    monkeypatch.setattr(_doctor, "checks_of", lambda rows: [])
    assert _doctor.examine("1.1.1")["exit_code"] == _doctor.WRONG


def test_variables_that_are_not_allowed_are_named(monkeypatch):
    rows = backends.table()
    assert _doctor.environment_findings(rows) == []
    monkeypatch.setenv("RANK", "0")
    assert _doctor.environment_findings(rows) == [
        "RANK and WORLD_SIZE are not both set; allowed: both or neither"
    ]
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert _doctor.environment_findings(rows) == ["WORLD_SIZE is 'two'; allowed: integers from 0"]
    monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "fast")
    assert "MAGI_ATTENTION_KERNEL_BACKEND is 'fast'" in _doctor.environment_findings(rows)[0]


def test_a_backend_that_serves_nothing_here_is_unfit_where_it_is_chosen(monkeypatch):
    row = backends.Row(
        "x", ("fa4",), "flash-attn-4", "", "9.x", (), "flash-attn-4 is not installed"
    )
    monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "fa4")
    assert _doctor.environment_findings([row]) == [
        "MAGI_ATTENTION_KERNEL_BACKEND is 'fa4', but flash-attn-4 is not installed"
    ]


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
@pytest.mark.parametrize("planted", [0.01, float("nan")])
def test_planted_errors_are_found(monkeypatch, name, planted):
    computed = _doctor._by_backend
    assert _doctor.compare("cpu", "ffa") == []

    def wrong(*arguments):
        found = computed(*arguments)
        found[name].view(-1)[0] += planted
        return found

    monkeypatch.setattr(_doctor, "_by_backend", wrong)
    (finding,) = _doctor.compare("cpu", "ffa")
    assert finding.startswith(f"{name}: error ")


def test_errors_of_a_backend_are_findings(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(_doctor, "_by_backend", refuse)
    monkeypatch.setattr(_doctor, "over_two_ranks", list)
    row = backends.table()[0]._replace(devices=("cpu",))
    first, second = _doctor.checks_of([row])
    assert first.findings == ["RuntimeError: no such kernel"] and second.findings == []
