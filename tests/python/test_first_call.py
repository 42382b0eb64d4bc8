# SPDX-License-Identifier: Apache-2.0
"""What ranks compare at the first call with a plan, beyond the plan."""

import datetime
import random
import threading
import time

import pytest
import torch.distributed as dist

import first_call_cases as cases
from magi_attention.comm.first_call import FirstCalls
from magi_attention.comm.process_group import ProcessGroupTransport
from magi_attention.errors import CommError
from ranks import Ranks
from test_transport import on_threads


@pytest.mark.parametrize("name", cases.DIFFERENCES)
def test_difference(ranks, name):
    ranks.run(2, cases.difference, name)


def test_nvlink_compares_a_groups_first_plan(ranks):
    ranks.run(2, cases.nvlink_compares_a_groups_first_plan)


@pytest.mark.parametrize("size", [2, 4])
def test_sinks_and_variables(ranks, size):
    if size == 2:
        ranks.run(size, cases.sinks_of_other_layouts)
    ranks.run(size, cases.variables)
    ranks.run(size, cases.widths_and_plans)


@pytest.mark.parametrize("who", [0, 1, 3])
def test_refusal(ranks, who):
    ranks.run(4 if who == 3 else 2, cases.refusal, who)


def test_refusal_once_it_runs(ranks):
    ranks.run(2, cases.refusal_once_it_runs)


@pytest.fixture(scope="module")
def own_ranks():
    """Ranks whose groups end with a failure."""
    started = Ranks(2)
    yield started
    started.stop()


@pytest.mark.parametrize("name", cases.DIFFERENCES)
def test_later_difference(own_ranks, name):
    own_ranks.run(2, cases.later_difference, name, "one")


def test_later_changes_of_all_ranks(own_ranks):
    own_ranks.run(2, cases.later_difference, "scale", "all")
    own_ranks.run(2, cases.later_agreement)


@pytest.mark.parametrize("who", [0, 1])
def test_later_refusal(own_ranks, who):
    own_ranks.run(2, cases.later_refusal, who)


def test_later_refusal_while_others_compare():
    three = Ranks(3)  # all ranks of a world take part in making a group
    for who in range(3):
        three.run(3, cases.later_refusal_while_others_compare, who)
    three.stop()


@pytest.mark.parametrize("who", [0, 1])
def test_later_abort(own_ranks, who):
    own_ranks.run(2, cases.later_abort, who)


def test_later_refusal_without_padding(own_ranks):
    own_ranks.run(2, cases.later_refusal_without_padding)


@pytest.mark.parametrize("who", [0, 1])
def test_later_abort_after_a_plan_of_one_rank(own_ranks, who):
    own_ranks.run(2, cases.later_abort_after_a_plan_of_one_rank, who)


def test_compiled(ranks):
    ranks.run(2, cases.compiled)


def rounds(size: int, body, seconds: float = 20) -> list:
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=seconds)
    return [
        *on_threads(size, lambda rank: body(rank, FirstCalls(store, rank, size, timeout))),
        store,
    ]


def test_rounds_leave_little_behind():
    def body(rank, first_calls):
        for number in range(20):
            first_calls.compare({"number": str(number)})

    *results, store = rounds(3, body)
    assert results == [None] * 3
    assert store.num_keys() <= 2 * (3 + 1) + 1 + 3  # and how manieth group it was, of each rank


@pytest.mark.parametrize("late", [0, 1])
def test_a_group_reads_nothing_of_one_before_it_that_had_its_store_and_name(late):
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=20)
    begin = threading.Barrier(2, timeout=30)

    def body(rank):
        def group():
            begin.wait()
            time.sleep(0.2 * (rank == late))
            return FirstCalls(store, rank, 2, timeout)

        group().compare({"number": "1"})
        with pytest.raises(CommError, match=r"^ranks differ in number: rank 0 has 0, rank 1 has 1"):
            group().compare({"number": str(rank)})
        first_calls = group()
        if rank != late:
            first_calls.refuse(ValueError("no"))  # nobody is told
        group().compare({"number": "2"})

    assert on_threads(2, body) == [None] * 2


def test_rank_that_does_not_come_is_named():
    def body(rank, first_calls):
        if rank != 2:
            first_calls.compare({})

    *results, _ = rounds(4, body, seconds=0.5)
    for rank in (0, 1, 3):
        assert isinstance(results[rank], CommError) and results[rank].failure == "timeout"
        assert str(results[rank]).startswith("rank 0 waited for rank 2 to make the first call")
    assert results[2] is None


@pytest.mark.parametrize("refusing", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_refusals_that_race(refusing):
    """Ranks refuse, twice at times, and try again at any moment: nobody hangs, no rank takes its
    own refusal for another's, and the rounds end together.
    """
    begin = threading.Barrier(3, timeout=30)

    def body(rank, first_calls):
        generator, told = random.Random(rank), 0
        for number in range(100):
            begin.wait()
            time.sleep(generator.choice((0, 0, 0.001)))
            for _ in range(generator.choice((1, 2)) if rank in refusing else 0):
                first_calls.refuse(ValueError("no"))
            while True:
                try:
                    first_calls.compare({"number": str(number)})
                    break
                except CommError as error:
                    assert error.failure == "aborted" and f"rank {rank} " not in str(error)
                    told += 1
        return told

    *results, store = rounds(3, body)
    assert all(isinstance(told, int) for told in results), results
    assert store.num_keys() <= 2 * (3 + 1 + 2 * 100)


def test_calls_that_all_refuse():
    """A refusal of a call that this rank refused as well is no answer to a later one."""

    def body(rank, first_calls):
        for _ in range(20):
            for _ in range(5):
                first_calls.refuse(ValueError("no"))
                time.sleep(0.002 * (rank == 2))
            first_calls.compare({})

    *results, _ = rounds(3, body)
    assert results == [None] * 3, results


class EndsAsTheWaitGivesUp:
    """Work of a process group that is done between the end of a short wait and the next look."""

    def __init__(self, error=None):
        self.error = error

    def wait(self, *limits):
        if limits:
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error

    def is_completed(self):
        return True


def test_rows_that_come_as_the_wait_gives_up_are_no_failure():
    assert ProcessGroupTransport._has_come(None, EndsAsTheWaitGivesUp())


def test_work_that_failed_meanwhile_says_why():
    with pytest.raises(RuntimeError, match="connection closed"):
        work = EndsAsTheWaitGivesUp(RuntimeError("connection closed"))
        ProcessGroupTransport._has_come(None, work)
