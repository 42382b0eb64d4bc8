# SPDX-License-Identifier: Apache-2.0
"""Ranks that come late, end or are stopped, where rank 0 hosts the store of the group over TCP.
One launch of ranks, which lose one of them after the other.
"""

import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

TIMEOUT = 3.0  # seconds after which the groups' own collectives fail
SOON = 2.0
LOST = ("in an exchange", "before a new plan", "stopped in an exchange", "stopped before a plan")


@pytest.fixture(scope="module")
def outputs():
    """What each rank wrote until it was lost, but rank 0, which is stopped and then ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, folder]
        launched = subprocess.run(command, timeout=280, check=False)
        assert launched.returncode == 0
        yield [pathlib.Path(folder, str(rank)).read_text() for rank in range(4)]


def told(output: str, when: str) -> tuple[float, str]:
    """Seconds, and what a rank was told."""
    found = re.search(rf"^{when}, after ([0-9.]+): (.*)$", output, re.MULTILINE)
    assert found, output
    return float(found[1]), found[2]


def test_a_late_rank_makes_no_noise(outputs):
    for output in outputs:
        assert output.startswith("late, after"), output


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_that_ends_in_an_exchange(outputs, rank):
    seconds, text = told(outputs[rank], LOST[0])
    assert seconds < SOON
    assert re.search(r"group_cast with ranks .*, as ranks? .*3.* ha(s|ve) ended: ", text), text


@pytest.mark.parametrize("rank", range(2))
def test_a_rank_that_ends_before_a_new_plan(outputs, rank):
    seconds, text = told(outputs[rank], LOST[1])
    assert seconds < SOON
    assert re.search(r"CommError: rank 0 waited for rank 2 to .*: its process has ended$", text)


def test_rank_0_is_stopped_with_the_store(outputs):
    for when in LOST[2:]:
        seconds, text = told(outputs[1], when)
        assert seconds < 2 * TIMEOUT + 1
        assert "CommError" in text and "the process that hosts it may be stopped" in text


def _bound(group, rows: int):
    from magi_attention import masks
    from magi_attention.plan import Plan

    plan = Plan.from_mask(
        masks.from_document_ids([0] * rows, causal=False), cp_size=group.size(), num_heads_q=2,
        num_heads_kv=1, head_dim=8,
    )  # fmt: skip
    return plan.bind(group)


def _call(bound) -> None:
    import torch

    bound.calc_attn(*(torch.ones(bound.local_rows, heads, 8) for heads in (2, 1, 1)))


def _tell(when: str, call) -> None:
    begin, text = time.monotonic(), "ran"
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    print(f"{when}, after {time.monotonic() - begin}: {text}", flush=True)


def _run(port: int, rank: int) -> None:
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=4, timeout=timeout
    )
    timeout = datetime.timedelta(seconds=TIMEOUT)
    groups = [dist.new_group(range(size), timeout=timeout) for size in (4, 3, 2)]
    groups = [group for group in groups if dist.get_rank(group) >= 0]
    bounds = [_bound(group, 48) for group in groups]
    for group, bound in zip(groups, bounds):
        _call(bound)
        dist.barrier(group)
    time.sleep(1.2 * (rank == 1))
    _tell("late", lambda: _call(_bound(groups[0], 96)))
    dist.barrier(groups[0])
    if rank == 3:
        os._exit(0)
    _tell(LOST[0], lambda: _call(bounds[0]))
    dist.barrier(groups[1])
    if rank == 2:
        os._exit(0)
    _tell(LOST[1], lambda: _call(_bound(groups[1], 96)))
    dist.barrier(groups[2])
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    _tell(LOST[2], lambda: _call(bounds[2]))
    _tell(LOST[3], lambda: _call(_bound(groups[2], 96)))
    os._exit(0)


def _launch(folder: str) -> None:
    """Forks ranks, which so import torch once."""
    import torch.distributed as dist

    import magi_attention.plan  # noqa: F401

    port = dist.TCPStore("127.0.0.1", 0, 1, True).port  # a free one, as the store goes at once
    ranks = []
    for rank in range(4):
        if (process := os.fork()) == 0:
            file = os.open(os.path.join(folder, str(rank)), os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
            _run(port, rank)
        ranks.append(process)
    for process in ranks[1:]:
        os.waitpid(process, 0)
    os.kill(ranks[0], signal.SIGKILL)
    os.waitpid(ranks[0], 0)


if __name__ == "__main__":
    _launch(sys.argv[1])
