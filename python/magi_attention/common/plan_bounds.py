# SPDX-License-Identifier: Apache-2.0
"""What no plan of a mask can be below."""

from __future__ import annotations

from dataclasses import dataclass

from magi_attention._native.handles import PlanHandle


@dataclass(frozen=True)
class PlanBounds:
    """Lower bounds of plans that move keys alone (docs/bounds.md); one that moves queries may be
    below them. Within the plan's limits: the same chunks, no rank with more of them or a larger
    area than the plan's largest.

    rows, bytes: key rows received in a forward pass, by any placement within the limits, and their
    bytes; contiguous_bytes: where every rank holds one run of chunks; layout_bytes: by the plan's
    own placement; balance: largest area over the mean; forward_seconds, backward_seconds: predicted
    time of the slowest rank, without latencies. proof: JSON text that `Plan.bound_defects` checks.
    """

    rows: int
    bytes: int
    contiguous_bytes: int
    layout_bytes: int
    balance: float
    forward_seconds: float
    backward_seconds: float
    proof: str


def find_bounds(handle: PlanHandle, work: int) -> PlanBounds:
    """Those of a plan, searched for with `work` cells of tables."""
    found, proof = handle.bounds(work)
    return PlanBounds(
        rows=found.rows,
        bytes=found.bytes,
        contiguous_bytes=found.contiguous_bytes,
        layout_bytes=found.layout_bytes,
        balance=found.balance,
        forward_seconds=found.forward_seconds,
        backward_seconds=found.backward_seconds,
        proof=proof,
    )
