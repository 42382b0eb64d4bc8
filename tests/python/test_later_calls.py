# SPDX-License-Identifier: Apache-2.0
"""What ranks say at a group's store once their calls run. Cases over processes are in
test_first_call.py.
"""

import pytest
import torch.distributed as dist

from magi_attention.comm.later_calls import LaterCalls
from magi_attention.errors import CommError


def ranks_of(store, transport: str, size: int = 2) -> list[LaterCalls]:
    """The ranks of a new group, which have agreed on the name of a transport."""
    made = [LaterCalls(store, rank, size) for rank in range(size)]
    for later in made:
        later.agreed(transport)
    return made


def fails(store, transport: str) -> None:
    """A group whose rank 1 refuses its second attention and gives the transport up."""
    here, there = ranks_of(store, transport)
    for later in (here, there):
        later.begin()
    there.refuse(ValueError("no"))
    here.begin()
    with pytest.raises(CommError, match=r"^rank 1 refused its arguments: ValueError: no$"):
        here.check(transport)
    there.abort(transport, "a reason")
    with pytest.raises(CommError, match=r"^a reason$"):
        here.check(transport)


def test_groups_of_one_store():
    """One that is made after another failed has its name at times, and so its keys."""
    store = dist.HashStore()
    fails(store, "first")
    here, there = ranks_of(store, "second")
    for _ in range(3):
        for later in (here, there):
            later.begin()
            later.check("second")
    fails(store, "third")


def test_transports_of_one_group():
    """A plan that is bound anew is not aborted; refusals are of all plans."""
    here, there = ranks_of(dist.HashStore(), "first")
    there.abort("first", "a reason")
    for later in (here, there):
        later.agreed("second")
        later.begin()
        later.check("second")
    there.refuse(ValueError("no"))
    here.begin()
    with pytest.raises(CommError, match="refused"):
        here.check("second")


def test_calls_leave_no_keys():
    store = dist.HashStore()
    here, there = ranks_of(store, "first")
    before = store.num_keys()
    for number in range(100):
        for later in (here, there):
            later.agreed(str(number))
            later.begin()
            later.check(str(number))
    assert store.num_keys() == before
    for _ in range(100):
        for later in (here, there):
            later.refuse(ValueError("no"))
            later.begin()
    assert store.num_keys() <= before + 3


def test_refusals_before_ranks_have_met():
    """Nobody waits for rows then, so nothing is said; the call after them runs."""
    store = dist.HashStore()
    here, there = (LaterCalls(store, rank, 2) for rank in range(2))
    there.refuse(ValueError("no"))
    before = store.num_keys()
    for later in (here, there):
        later.begin()
        later.agreed("first")
        later.check("first")
    assert store.num_keys() == before
