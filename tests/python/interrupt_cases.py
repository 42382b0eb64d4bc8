# SPDX-License-Identifier: Apache-2.0
"""Ranks that are interrupted (Ctrl-C) while they wait for another one's rows."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time

import torch
import torch.distributed as dist

from error_cases import refuses
from magi_attention import masks
from magi_attention.comm import process_group
from magi_attention.config import DistAttnConfig
from magi_attention.errors import CommError
from magi_attention.plan import Plan


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


def in_a_wait(group, work: str) -> None:
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


def too_long(group) -> None:
    """A rank that is given up for an interrupt tells the others, when they come."""
    timeout = datetime.timedelta(seconds=20)
    own = dist.new_group(dist.get_process_group_ranks(group), timeout=timeout)
    bound = _bound(own, "queries")
    q = torch.ones(bound.local_rows, 4, 8)
    bound.calc_attn(q, q, q)
    kept, process_group._GRACE_TIME = process_group._GRACE_TIME, 0.1
    try:
        if dist.get_rank(group) == 0:
            _interrupted_by(0.1, lambda: bound.calc_attn(q, q, q))
        else:
            time.sleep(1.0)
            refuses(lambda: bound.calc_attn(q, q, q), CommError, "rank 0 aborted: interrupted")
        dist.barrier(group)
    finally:
        process_group._GRACE_TIME = kept
