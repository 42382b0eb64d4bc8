# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest (-p distributed.kept_results) for tests that run in parts: --results FILE gets
a JSON line for each test that ended, tests that passed before are left out, and --minutes begins
none later. The last line says whether a run came to its end.
"""

from __future__ import annotations

import json
import pathlib
import time

import pytest

from distributed.kept import read_cells


def pytest_addoption(parser) -> None:
    """The two options."""
    parser.addoption("--results", type=pathlib.Path, required=True, help="JSON lines to add to")
    parser.addoption("--minutes", type=float, default=float("inf"), help="begin no test later")


def pytest_configure(config) -> None:
    """Registers what keeps the results."""
    config.pluginmanager.register(Kept(config))


class Kept:
    """Results of this run and of those before it."""

    def __init__(self, config) -> None:
        self._path, self._begin = config.getoption("--results"), time.monotonic()
        self._seconds = 60 * config.getoption("--minutes")
        lines = [line for line in read_cells(self._path) if "test" in line]
        self._passed = {line["test"] for line in lines if line["outcome"] != "failed"}
        kept = [line for line in lines if line["test"] in self._passed]
        self._path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._is_stopped = False

    def pytest_collection_modifyitems(self, config, items) -> None:
        """Leaves out what passed, or was skipped, before."""
        left = [item for item in items if item.nodeid in self._passed]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report) -> None:
        """A test has one line: of its call, or of what went before it and did not pass."""
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
            self._add({**line, "seconds": round(report.duration, 2)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item) -> bool | None:
        """Ends the run in front of a test for which there is no time."""
        if time.monotonic() - self._begin <= self._seconds:
            return None
        self._is_stopped = True
        item.session.shouldstop = "time is over; the other tests are left for another run"
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session, exitstatus) -> None:
        """0: passed; 5: there was nothing left to run. A run that time ended has not failed."""
        if exitstatus in (0, 5) and not self._is_stopped:
            self._add({"finished": True})
        if exitstatus == 5 or (self._is_stopped and not session.testsfailed):
            session.exitstatus = 0

    def _add(self, line: dict) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
