# SPDX-License-Identifier: Apache-2.0
"""Timelines of attention over the ranks of a group, for Perfetto and Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist

from magi_attention._native.step_trace import is_tracing, start_traces, stop_traces
from magi_attention.comm.group import rank_of, size_of
from magi_attention.tracing.clock import clock_offsets
from magi_attention.tracing.events import timeline
from magi_attention.tracing.kernels import KernelProfile, launched_by
from magi_attention.tracing.passes import passes_of


@contextmanager
def trace(path: str, cp_group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Writes what calc_attn does inside as a timeline of all ranks to `path`, by rank 0 of cp_group
    (None: of all ranks): JSON that ui.perfetto.dev opens. Collective as it begins and as it ends.

    A process per rank. Row "host": forward and backward, in them the steps of the plan and the
    waits for exchanges. On a GPU a row per stream: kernels by name, whoever launched them, with
    the step that did, by torch.profiler. Rows "predicted": the plan's steps as its cost model has
    them, from where the pass began on the first rank. Times of ranks on other hosts are put on
    rank 0's clock by a few barriers; docs/python.md tells how well.

    ValueError where no plan of several ranks was run inside; RuntimeError for a trace in a trace.
    An error inside leaves, and nothing is written.
    """
    if is_tracing():
        raise RuntimeError("a trace is being taken; allowed: one at a time")
    if cp_group is None and dist.is_initialized():
        cp_group = dist.group.WORLD
    rank_of(cp_group)
    with ExitStack() as stack:
        kernels = None
        if torch.cuda.is_available():
            kernels = stack.enter_context(KernelProfile())
        offsets = clock_offsets(cp_group)
        start_traces()
        try:
            yield
        finally:
            noted = stop_traces()
    passes = passes_of(noted)
    found = [] if kernels is None else launched_by(kernels.kernels, passes)
    everyone = _gather({"passes": passes, "kernels": found}, cp_group)
    if not any(record["passes"] for record in everyone):
        raise ValueError("nothing was traced; allowed: calc_attn of a plan of several ranks inside")
    if rank_of(cp_group) == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(timeline(everyone, offsets), file)


def _gather(record: dict, group: dist.ProcessGroup | None) -> list[dict]:
    if size_of(group) == 1:
        return [record]
    everyone = [None] * size_of(group)
    dist.all_gather_object(everyone, record, group=group)
    return everyone
