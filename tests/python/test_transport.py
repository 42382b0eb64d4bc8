# SPDX-License-Identifier: Apache-2.0
"""Which transport carries the rows of a group, and how ranks meet at its store. No GPU."""

import datetime
import json
import socket
import threading

import pytest
import torch
import torch.distributed as dist

import nccl_cases
from magi_attention.comm.allgather import StoreAllgather
from magi_attention.comm.group import make_communicator
from magi_attention.comm.lives import Lives
from magi_attention.comm.store import PatientStore
from magi_attention.env import comm as env
from magi_attention.errors import CommError

VARIABLE = "MAGI_ATTENTION_TRANSPORT"


def test_variable_is_read_and_checked(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert env.transport() == "auto"
    monkeypatch.setenv(VARIABLE, "NCCL")
    assert env.transport() == "nccl"
    monkeypatch.setenv(VARIABLE, "carrier pigeon")
    with pytest.raises(ValueError, match="is 'carrier pigeon'; allowed: auto, nvlink, nccl, p"):
        env.transport()


def test_other_argument_is_refused():
    with pytest.raises(ValueError, match="transport is 'gloo'; allowed: auto, nvlink, nccl, p"):
        make_communicator(None, "gloo")


def test_one_rank_needs_none(monkeypatch):
    """The environment's choice is for groups."""
    monkeypatch.setenv("MAGI_ATTENTION_TRANSPORT", "nccl")
    assert make_communicator(None).backend == "threads"


@pytest.mark.parametrize("transport", ["process_group", "auto"])
def test_gloo_groups_carry_their_rows_themselves(ranks, transport):
    ranks.run(2, nccl_cases.is_carried_by, transport, "process_group")


def is_refused(group, transport: str) -> None:
    message = f"^transport is '{transport}', but this process sees no GPU; allowed: auto, process_g"
    with pytest.raises(ValueError, match=message):
        make_communicator(group, transport)


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: it needs a machine without GPUs")
@pytest.mark.parametrize("transport", ["nccl", "nvlink"])
def test_transports_of_gpus_are_refused_without_them_on_every_rank(ranks, transport):
    is_refused(None, transport)
    ranks.run(2, is_refused, transport)


def on_threads(size: int, body) -> list:
    """body(rank) on a thread per rank; results or errors in rank order."""
    results = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def allgather(store: dist.Store, rank: int, timeout: datetime.timedelta) -> StoreAllgather:
    return StoreAllgather(Lives(PatientStore(store, timeout), rank, 3), timeout)


def test_ranks_meet_at_the_store():
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=20)

    def body(rank: int) -> list:
        groups = [allgather(store, rank, timeout) for _ in range(2)]
        return [groups[call % 2](bytes([rank, call]) * call) for call in range(8)]

    for result in on_threads(3, body):
        assert result == [[bytes([rank, call]) * call for rank in range(3)] for call in range(8)]
    # where ranks are, the counts of the groups, and what was said in the last two calls of each
    assert store.num_keys() <= 3 + 3 + 3 * 2 * 2


def test_rank_that_does_not_come_is_named():
    store, timeout = dist.HashStore(), datetime.timedelta(milliseconds=300)
    found = on_threads(2, lambda rank: allgather(store, rank, timeout)(b"x"))
    for rank, error in enumerate(found):
        assert isinstance(error, CommError)
        assert error.failure == "timeout"
        assert f"rank {rank} waited for rank 2 at the group's store" in str(error)


def test_rank_that_has_ended_is_told_with_its_host():
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=20)
    lives = Lives(PatientStore(store, timeout), 0, 3)
    with socket.create_server(("", 0)) as gone:
        told = json.loads(store.get("magi_attention/lives/0"))
        told |= {"port": gone.getsockname()[1], "host": "elsewhere"}
    for rank in (1, 2):
        store.set(f"magi_attention/lives/{rank}", json.dumps(told))
    ended = "waited for rank 1 on elsewhere at the group's store: its process has ended"
    with pytest.raises(CommError, match=ended):
        StoreAllgather(lives, timeout)(b"x")


def test_the_first_that_ended_is_told_to_those_who_look_later(monkeypatch):
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=20)
    seen, found, ranks = {0: [2], 1: [0, 2]}, [], [0, 1, 2]
    monkeypatch.setattr(Lives, "has_ended", lambda lives, rank: rank in seen[lives.rank])
    for rank, group in ((0, 1), (1, 1), (1, 2)):  # the second group follows the first
        lives = Lives(PatientStore(store, timeout), rank, 3, group)
        found.append(lives.find_ended(ranks))
    assert found == [[2], [2], [0, 2]]
    assert lives.find_ended([0]) == [0]  # the answer names rank 2 too, which was not asked for
    # A store whose host was stopped for a while answers late; nobody waits for that.
    late, end = dist.TCPStore("localhost", 0, is_master=True), threading.Event()
    monkeypatch.setattr(dist.TCPStore, "compare_set", lambda *_: end.wait(9) or "[1]")
    assert Lives(PatientStore(late, timeout), 1, 3, 1).find_ended(ranks) == [0, 2]
    end.set()
