# SPDX-License-Identifier: Apache-2.0
"""Cases about what is sent, on torch's default device."""

from __future__ import annotations

import torch
import torch.distributed as dist

from magi_attention import api
from magi_attention.common import AttnRanges


def bytes_are_the_plans(group, rows: int) -> None:
    """Forward moves what the plan says, all ranks together; backward that and float32 partials."""
    ranges = AttnRanges.from_ranges([(0, rows)])
    plan = api.Plan.from_ranges(
        ranges, ranges, "causal", rows, cp_size=dist.get_world_size(group), num_heads_q=4,
        num_heads_kv=2, head_dim=64,
    )  # fmt: skip
    bound = plan.bind(group)

    def leaf(heads: int) -> torch.Tensor:
        return torch.randn(bound.local_rows, heads, 64, dtype=torch.bfloat16).requires_grad_()

    def sent() -> int:
        total = torch.tensor(sum(bound.communicator.counters()["bytes_to_peer"]))
        dist.all_reduce(total, group=group)
        return total.item()

    out, _ = bound.calc_attn(leaf(4), leaf(2), leaf(2))
    assert sent() == plan.report.total_bytes > 0
    assert bound.communicator.counters()["casts"] == plan.report.num_waves - 1
    out.sum().backward()
    assert sent() == 4 * plan.report.total_bytes
    assert bound.communicator.counters()["reduces"] == plan.report.num_waves - 1
