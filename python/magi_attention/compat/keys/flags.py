# SPDX-License-Identifier: Apache-2.0
"""Checks of flags, and what they mean for a group."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention.common._arguments import as_bool
from magi_attention.env import apply_log_level, check_all, comm


def check_self_attention(
    is_same_source: bool, is_q_permutable: bool, is_k_permutable: bool
) -> None:
    """NotImplementedError unless queries and keys are rows of one sequence."""
    named = ("is_same_source", is_same_source), ("is_q_permutable", is_q_permutable)
    if not all(as_bool(*pair) for pair in (*named, ("is_k_permutable", is_k_permutable))):
        raise NotImplementedError(
            f"is_same_source={is_same_source}, is_q_permutable={is_q_permutable}, "
            f"is_k_permutable={is_k_permutable} is not available; all must be True"
        )


def check_flag_comb() -> None:
    """Raises for environment variables with values that are not allowed; warns for older names.
    Sets the level of the logger.
    """
    check_all()
    apply_log_level()


def devices_per_node(cp_mesh: DeviceMesh | None, cp_group: dist.ProcessGroup) -> int:
    """Ranks of a row of the mesh, which is a node, where hierarchical communication is asked for;
    else 0. cp_group: the mesh's. ValueError without a 2-D mesh, and for one whose rows are not runs
    of the group's ranks.
    """
    if not comm.is_hierarchical_comm_enable():
        return 0
    if cp_mesh is None or cp_mesh.ndim != 2:
        raise ValueError(
            "cp_group_or_mesh is not a 2-D mesh while MAGI_ATTENTION_HIERARCHICAL_COMM is 1; "
            "allowed: a 2-D DeviceMesh"
        )
    ranks = dist.get_process_group_ranks(cp_group)
    size = cp_mesh.size(1)
    nodes = [sorted(row) for row in cp_mesh.mesh.tolist()]
    for first in range(0, len(ranks), size):
        if sorted(ranks[first : first + size]) not in nodes:
            raise ValueError(
                f"cp_group_or_mesh has rows {nodes}, which its group of ranks {ranks} does "
                "not hold one behind the other; allowed: a 2-D DeviceMesh of which each row, a "
                "node, is a run of the group's ranks"
            )
    return size
