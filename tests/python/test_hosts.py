# SPDX-License-Identifier: Apache-2.0
"""Ranks on two emulated hosts, two on each; bench/hosts.py runs more of the same."""

import json
import pathlib

import pytest

from hosts import Hosts
from ranks import launch

CASES = pathlib.Path(__file__).with_name("host_cases.py")
VICTIM = 3
SOON = 20.0  # seconds; who waits for a timeout waits for 100


@pytest.fixture(scope="module")
def lines():
    """What ranks print in one launch, in which the victim is lost at last."""
    try:
        hosts = Hosts()
    except (OSError, RuntimeError) as error:
        pytest.skip(str(error))
    cases = "exact:29", "cross:192", f"lost:{VICTIM}:50"
    _, output = launch(CASES, "cpu", *cases, ranks=4, hosts=hosts)
    hosts.stop()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(lines) == 4 + 4 + 3, output
    return lines


def test_plans_are_exact(lines):
    assert [line["wrong"] for line in lines if "wrong" in line] == [[]] * 4
    assert lines[0]["of"] == 7


def test_rows_cross_once(lines):
    counted, planned = (sum(line.get(name, 0) for line in lines) for name in ("counted", "planned"))
    assert counted == planned > 0


def test_an_end_is_told_with_its_host(lines):
    told = [line for line in lines if "text" in line]
    assert [line["rank"] for line in told] == [0, 1, 2]
    for line in told:
        assert f"rank {VICTIM} on host1 has ended" in line["text"]
        assert line["seconds"] < SOON
