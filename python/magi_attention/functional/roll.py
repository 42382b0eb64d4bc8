# SPDX-License-Identifier: Apache-2.0
"""torch.roll along a sequence whose rows live on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from magi_attention.functional.dispatch import check_group

if TYPE_CHECKING:
    from magi_attention.bound_plan import BoundPlan


def roll_p2p(
    x_local: torch.Tensor,
    shift: int,
    meta: "BoundPlan",
    group: "dist.ProcessGroup | None",
    seq_dim: int = 0,
) -> torch.Tensor:
    """Rolls by `shift` in the order of the sequence; only rows that change rank are sent."""
    check_group(group, meta)
    return meta.roll(x_local, shift, seq_dim)


roll_simple_p2p = roll_p2p
