# SPDX-License-Identifier: Apache-2.0
"""Figures of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from magi_attention._native.handles import PlanHandle


@dataclass(frozen=True)
class PlanReport:
    """Figures of a plan. Tuples have one number for each rank.

    - rank_area: visible (query, key) pairs; balance: the largest over their mean, 1 is even.
    - rank_rows: rows that it holds, padding included; remote_rows: key rows that it receives.
    - rank_runs: runs (Plan.runs) that come after a row of another rank, whose states recurrent
      layers fetch.
    - rank_memory: bytes of rows of other ranks and of their gradients in a backward.
    - total_bytes: sent by all ranks in one forward; ring_bytes: what a ring or an all-gather sends;
      lower_bound_bytes: what no placement that is balanced as well goes below.
    - forward_seconds, backward_seconds: of a layer, predicted; exposed_comm_seconds: communication
      of the forward that nothing hides.
    - num_stages: that of the own keys included. digest: 64 bits that equal plans share.
    - num_head_shares: above 1, a row's heads are cut into so many shares, each of which counts as a
      row above, with its pairs.
    """

    digest: int
    num_stages: int
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    head_dim_v: int
    rank_area: tuple[int, ...]
    rank_rows: tuple[int, ...]
    remote_rows: tuple[int, ...]
    rank_runs: tuple[int, ...]
    rank_memory: tuple[int, ...]
    num_head_shares: int
    balance: float
    total_bytes: int
    lower_bound_bytes: int
    ring_bytes: int
    forward_seconds: float
    backward_seconds: float
    exposed_comm_seconds: float


def find_report(handle: PlanHandle) -> PlanReport:
    """The figures that the library computes of its plan."""
    report = handle.report()
    found = {}
    for name in PlanReport.__dataclass_fields__:
        value = getattr(report, "head_dim_qk" if name == "head_dim" else name)
        found[name] = value if isinstance(value, (int, float)) else tuple(value[: report.num_ranks])
    return PlanReport(**found)
