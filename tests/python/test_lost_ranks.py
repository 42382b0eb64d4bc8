# SPDX-License-Identifier: Apache-2.0
"""Ranks that come late, end or are stopped, where rank 0 hosts the store of the group over TCP.
One launch of ranks, which lose one of them after the other.
"""

import datetime
import os
import pathlib
import re
import signal
import time

import pytest

from ranks import launch

TIMEOUT = 3.0  # seconds after which the groups' own collectives fail
SOON = 2.0
LOST = ("in an exchange", "before a new plan", "stopped in an exchange", "stopped before a plan")


@pytest.fixture(scope="module")
def outputs():
    """What each rank wrote until it was lost, but rank 0, which is stopped and then killed."""
    code, output = launch(pathlib.Path(__file__), ranks=4)
    assert code == -signal.SIGKILL, output
    return re.split("^rank [0-3]$", output, flags=re.MULTILINE)[1:]


def told(output: str, when: str) -> tuple[float, str]:
    """Seconds, and what a rank was told."""
    found = re.search(rf"^{when}, after ([0-9.]+): (.*)$", output, re.MULTILINE)
    assert found, output
    return float(found[1]), found[2]


def test_a_late_rank_makes_no_noise(outputs):
    for output in outputs:
        assert output.lstrip().startswith("late, after"), output


@pytest.mark.parametrize(
    "when, others, pattern",
    [
        (LOST[0], 3, r"group_cast with ranks .*, as ranks? .*3.* ha(s|ve) ended: "),
        (LOST[1], 2, r"CommError: rank 0 waited for rank 2 to .*: its process has ended$"),
    ],
)
def test_a_rank_that_ends(outputs, when, others, pattern):
    for output in outputs[:others]:
        seconds, text = told(output, when)
        assert seconds < SOON
        assert re.search(pattern, text), text


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


def _print_outcome(when: str, call) -> None:
    begin, text = time.monotonic(), "ran"
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    print(f"{when}, after {time.monotonic() - begin}: {text}", flush=True)


def _run() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    print(f"rank {rank}", flush=True)
    processes = [0] * 4
    dist.all_gather_object(processes, os.getpid())
    timeout = datetime.timedelta(seconds=TIMEOUT)
    groups = [dist.new_group(range(size), timeout=timeout) for size in (4, 3, 2)]
    groups = [group for group in groups if dist.get_rank(group) >= 0]
    bounds = [_bound(group, 48) for group in groups]
    for group, bound in zip(groups, bounds):
        _call(bound)
        dist.barrier(group)
    time.sleep(1.2 * (rank == 1))
    _print_outcome("late", lambda: _call(_bound(groups[0], 96)))
    dist.barrier(groups[0])
    if rank == 3:
        os._exit(0)
    _print_outcome(LOST[0], lambda: _call(bounds[0]))
    dist.barrier(groups[1])
    if rank == 2:
        os._exit(0)
    _print_outcome(LOST[1], lambda: _call(_bound(groups[1], 96)))
    dist.barrier(groups[2])
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    _print_outcome(LOST[2], lambda: _call(bounds[2]))
    _print_outcome(LOST[3], lambda: _call(_bound(groups[2], 96)))
    os.kill(processes[0], signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    _run()
