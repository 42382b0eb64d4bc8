# SPDX-License-Identifier: Apache-2.0
"""What ends a program (Ctrl-C, sys.exit of a signal handler) inside of functions of Python that the
library calls: it reaches the caller, and no result is taken for a good one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import backend_cases
from magi_attention import Plan, backends, masks
from magi_attention._native.vtable import CAST, Communicator
from magi_attention.comm import process_group
from magi_attention.config import DistAttnConfig
from magi_attention.errors import CommError
from ranks import over, own_group, refuses


def _bound(group, work: str):
    plan = Plan.from_mask(
        masks.from_document_ids([0] * 64, causal=True), cp_size=2, num_heads_q=4, num_heads_kv=4,
        head_dim=8, config=DistAttnConfig(work=work),
    )  # fmt: skip
    return plan.bind(group)


def _interrupted_by(seconds: float, call) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    refuses(call, KeyboardInterrupt, "")
    timer.join()


@over(2)
@pytest.mark.parametrize("work", ["keys", "queries"])
def test_ranks_that_wait(group, work: str):
    """The ranks are in step behind the call, forward and backward."""
    bound = _bound(group, work)
    generator = torch.Generator().manual_seed(1 + dist.get_rank(group))
    q, k, v = (torch.randn(bound.local_rows, 4, 8, generator=generator) for _ in range(3))
    q, k, v = (x.requires_grad_() for x in (q, k, v))

    def results() -> list[torch.Tensor]:
        out = bound.calc_attn(q, k, v)[0]
        return [out, *torch.autograd.grad(out.sum(), (q, k, v))]

    wanted = results()
    for is_backward in (False, True):
        out = bound.calc_attn(q, k, v)[0].sum() if is_backward else None

        def call(out=out) -> None:
            torch.autograd.grad(out, (q, k, v)) if out is not None else bound.calc_attn(q, k, v)

        if dist.get_rank(group) == 0:
            _interrupted_by(0.1, call)
        else:
            time.sleep(0.4)
            call()
        assert all(map(torch.equal, results(), wanted))


@over(2)
def test_ranks_that_wait_too_long(group):
    """A rank that is given up for an interrupt tells the others, when they come."""
    bound = _bound(own_group(dist.get_process_group_ranks(group)), "queries")
    q = torch.ones(bound.local_rows, 4, 8)
    bound.calc_attn(q, q, q)
    with mock.patch.object(process_group, "_GRACE_TIME", 0.1):
        if dist.get_rank(group) == 0:
            _interrupted_by(0.1, lambda: bound.calc_attn(q, q, q))
        else:
            time.sleep(1.0)
            refuses(lambda: bound.calc_attn(q, q, q), CommError, "rank 0 aborted: interrupted")
        dist.barrier(group)


ENDS = pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])


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

    with backend_cases.registered(backends.Limits(), **{where: interrupted}):
        bound = Plan.from_mask(
            masks.from_cu_seqlens([0, 4]), cp_size=1, num_heads_q=2, num_heads_kv=2, head_dim=8
        ).bind(backend=backend_cases.NAME)
        q, k, v = (torch.randn(4, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
        with pytest.raises(end):
            bound.calc_attn(q, k, v)[0].sum().backward()
