# SPDX-License-Identifier: Apache-2.0
"""Shards of a sequence as functions of tensors. `meta` is a bound plan (Plan.bind), which knows its
group; `group` is the original's argument and must be that group or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from magi_attention.bound_plan import BoundPlan


def dispatch_func(
    x_global: torch.Tensor,
    group: "dist.ProcessGroup | None",
    meta: "BoundPlan",
    seq_dim: int = 0,
) -> torch.Tensor:
    """The same tensor on every rank -> this rank's rows along seq_dim."""
    check_group(group, meta)
    return meta.dispatch(x_global.movedim(seq_dim, 0)).movedim(0, seq_dim)


def undispatch_func(
    x_local: torch.Tensor,
    meta: "BoundPlan",
    group: "dist.ProcessGroup | None",
    seq_dim: int = 0,
    is_partial_grad: bool = False,
) -> torch.Tensor:
    """This rank's rows along seq_dim -> the whole tensor on every rank."""
    check_group(group, meta)
    return meta.undispatch(x_local.movedim(seq_dim, 0), is_partial_grad).movedim(0, seq_dim)


def check_group(group: "dist.ProcessGroup | None", meta: "BoundPlan") -> None:
    """ValueError where a group is given that is not the plan's."""
    if group is not None and group is not meta.cp_group:
        raise ValueError("group is not that of meta; allowed: the group that the plan is bound to")
