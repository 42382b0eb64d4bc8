# SPDX-License-Identifier: Apache-2.0
"""What ends a program (Ctrl-C, sys.exit of a signal handler) inside of functions of Python that the
library calls: it reaches the caller, and no result is taken for a good one.
"""

import pytest
import torch

import backend_cases
import interrupt_cases
from magi_attention import Plan, backends, masks
from magi_attention._native.vtable import CAST, Communicator
from ranks import Ranks

ENDS = pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])


@pytest.fixture(scope="module")
def own_ranks():
    """Ranks whose groups are over afterwards."""
    started = Ranks(2)
    yield started
    started.stop()


class Interrupted:
    """The transport of rank 0 of two, interrupted in the function of this name."""

    rank, num_ranks, backend, moves_device_memory = 0, 2, b"test", False

    def __init__(self, end: type, where: str) -> None:
        self._end, self._where = end, where

    def _end_in(self, where: str) -> None:
        if where == self._where:
            raise self._end

    def allgather(self, data: bytes) -> list[bytes]:
        self._end_in("allgather")
        return [data, data]

    def start_bytes(self, exchange):
        self._end_in("start_bytes")
        return lambda: self._end_in("wait")

    def abort(self, reason: str) -> None:
        pass


@ENDS
@pytest.mark.parametrize("where", ["start_bytes", "wait"])
def test_in_a_transport(end, where):
    communicator = Communicator.over(Interrupted(end, where))
    received = torch.zeros(2, 1)
    with pytest.raises(end):
        communicator.exchange(CAST, [torch.ones(2, 1)], [received], [(1, 0, 2)], [(1, 0, 2)])()


@ENDS
@pytest.mark.parametrize("where", ["prepare", "forward", "backward"])
def test_in_a_backend(end, where):
    def interrupted(*arguments):
        raise end

    functions = {name: getattr(backend_cases, name) for name in ("forward", "backward", "prepare")}
    functions[where] = interrupted
    backends.register(
        backend_cases.NAME, functions["forward"], functions["backward"], backends.Limits(),
        functions["prepare"],
    )  # fmt: skip
    try:
        bound = Plan.from_mask(
            masks.from_cu_seqlens([0, 4]), cp_size=1, num_heads_q=2, num_heads_kv=2, head_dim=8
        ).bind(backend=backend_cases.NAME)
        q, k, v = (torch.randn(4, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
        with pytest.raises(end):
            bound.calc_attn(q, k, v)[0].sum().backward()
    finally:
        backends.unregister(backend_cases.NAME)


@pytest.mark.parametrize("work", ["keys", "queries"])
def test_ranks_that_wait(own_ranks, work):
    own_ranks.run(2, interrupt_cases.in_a_wait, work)


def test_ranks_that_wait_too_long(own_ranks):
    own_ranks.run(2, interrupt_cases.too_long)
