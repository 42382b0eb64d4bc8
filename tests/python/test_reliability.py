# SPDX-License-Identifier: Apache-2.0
"""The counted runs of bench/python/reliability_*, with few cases."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench/python"


def rows_of(tmp_path, name: str, *arguments: str) -> dict[str, int]:
    if not BENCH.exists():
        pytest.skip("the source tree is elsewhere")
    out = tmp_path / "rows.json"
    command = [sys.executable, str(BENCH / name), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row["value"] for row in json.loads(out.read_text())}


def test_groups(tmp_path):
    assert rows_of(tmp_path, "reliability_groups", "--groups", "14", "--seed", "2") == {
        "reliability.groups": 14,
        "reliability.groups.descriptors": 0,
        "reliability.groups.threads": 0,
    }


@pytest.mark.skipif(shutil.which("c++") is None, reason="not run: there is no C++ compiler")
def test_allocations(tmp_path):
    assert rows_of(tmp_path, "reliability_alloc", "--failures", "200", "--seed", "2") == {
        "reliability.alloc.python": 200,
        "reliability.alloc.python.crashes": 0,
    }
