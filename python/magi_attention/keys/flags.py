# SPDX-License-Identifier: Apache-2.0
"""Checks of flags: what excludes each other, and what is not available."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from magi_attention.env import apply_log_level, check_all, comm


def check_self_attention(
    is_same_source: bool, is_q_permutable: bool, is_k_permutable: bool
) -> None:
    """NotImplementedError unless queries and keys are rows of one sequence."""
    if not (is_same_source and is_q_permutable and is_k_permutable):
        raise NotImplementedError(
            f"is_same_source={is_same_source}, is_q_permutable={is_q_permutable}, "
            f"is_k_permutable={is_k_permutable} is not available; all must be True"
        )


def check_flag_comb() -> None:
    """Raises for environment variables with values that are not allowed, that exclude each other or
    that ask for what is not available; warns for older names. Sets the level of the logger.
    """
    check_all()
    apply_log_level()
    if comm.is_qo_comm_enable():
        raise NotImplementedError("MAGI_ATTENTION_QO_COMM=1 is not available; unset it")
    if comm.is_hierarchical_comm_enable() and comm.is_native_grpcoll_enable():
        raise ValueError(
            "MAGI_ATTENTION_HIERARCHICAL_COMM and MAGI_ATTENTION_NATIVE_GRPCOLL are both 1; "
            "allowed: one of them"
        )


def check_mesh(cp_mesh: DeviceMesh | None) -> None:
    """ValueError where hierarchical communication is asked for without a 2-D mesh."""
    if comm.is_hierarchical_comm_enable() and (cp_mesh is None or cp_mesh.ndim != 2):
        raise ValueError(
            "cp_group_or_mesh is not a 2-D mesh while MAGI_ATTENTION_HIERARCHICAL_COMM is 1; "
            "allowed: a 2-D DeviceMesh"
        )
