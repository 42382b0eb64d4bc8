# SPDX-License-Identifier: Apache-2.0
"""Variables of communication."""

from __future__ import annotations

from magi_attention._environment import (
    PREFIX,
    is_set,
    read_flag,
    read_int,
    read_renamed_flag,
    read_retired_flag,
    read_text,
)

# Functions that read a variable, in this order.
VARIABLES = (
    "is_hierarchical_comm_enable", "ffa_fwd_sm_margin_save_for_comm",
    "ffa_bwd_sm_margin_save_for_comm", "exchange_sms", "is_qo_comm_enable",
    "is_fwd_high_precision_reduce_enable", "is_bwd_high_precision_reduce_enable",
    "rounds_partial_gradients", "is_native_grpcoll_enable", "dsink_all_reduce_op",
    "is_ffa_fwd_inplace_correct", "transport",
)  # fmt: skip


def is_hierarchical_comm_enable() -> bool:
    """MAGI_ATTENTION_HIERARCHICAL_COMM: a 2-D mesh says which ranks share a node."""
    return read_flag(PREFIX + "HIERARCHICAL_COMM")


def _sm_margin(name: str) -> int:
    connections = read_int("CUDA_DEVICE_MAX_CONNECTIONS", 8, 1)
    return read_int(PREFIX + name, 4 if connections > 1 else 0, 0)


def ffa_fwd_sm_margin_save_for_comm() -> int:
    """MAGI_ATTENTION_FFA_FORWARD_SM_MARGIN, default 4, or 0 where CUDA_DEVICE_MAX_CONNECTIONS is 1.
    Only a value that is set has an effect: see exchange_sms.
    """
    return _sm_margin("FFA_FORWARD_SM_MARGIN")


def ffa_bwd_sm_margin_save_for_comm() -> int:
    """MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN, default 4, or 0 where CUDA_DEVICE_MAX_CONNECTIONS=1.
    Only a value that is set has an effect: see exchange_sms.
    """
    return _sm_margin("FFA_BACKWARD_SM_MARGIN")


def exchange_sms() -> tuple[int | None, int | None]:
    """Multiprocessors of a GPU that attention leaves to exchanges under way, in forward and in
    backward: MAGI_ATTENTION_FFA_FORWARD_SM_MARGIN and MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN, None,
    the library's choice, for one that is not set. Read when a plan is bound to its group.
    """
    names = ("FFA_FORWARD_SM_MARGIN", "FFA_BACKWARD_SM_MARGIN")
    margins = (read_int(PREFIX + name, -1, 0) for name in names)
    return tuple(None if margin < 0 else margin for margin in margins)


def is_qo_comm_enable() -> bool:
    """MAGI_ATTENTION_QO_COMM: plans whose `DistAttnConfig.work` is None move queries too."""
    return read_flag(PREFIX + "QO_COMM")


def is_fwd_high_precision_reduce_enable() -> bool:
    """MAGI_ATTENTION_FORWARD_HIGH_PRECISION_REDUCE; no effect: parts of out that travel are
    float32 always.
    """
    return read_flag(PREFIX + "FORWARD_HIGH_PRECISION_REDUCE")


def is_bwd_high_precision_reduce_enable() -> bool:
    """MAGI_ATTENTION_BACKWARD_HIGH_PRECISION_REDUCE, or the older
    MAGI_ATTENTION_FFA_BACKWARD_HIGH_PRECISION_REDUCE: partial gradients of keys travel in float32.
    They do so too where the variable is not set; see rounds_partial_gradients.
    """
    return read_renamed_flag(
        PREFIX + "FFA_BACKWARD_HIGH_PRECISION_REDUCE", PREFIX + "BACKWARD_HIGH_PRECISION_REDUCE"
    )


def rounds_partial_gradients() -> bool:
    """Whether MAGI_ATTENTION_BACKWARD_HIGH_PRECISION_REDUCE, or its older name, is set to 0:
    partial gradients of keys then travel in the type of k. Read when a plan is bound.
    """
    names = ("FFA_BACKWARD_HIGH_PRECISION_REDUCE", "BACKWARD_HIGH_PRECISION_REDUCE")
    is_asked = any(is_set(PREFIX + name) for name in names)
    return is_asked and not is_bwd_high_precision_reduce_enable()


def is_native_grpcoll_enable() -> bool:
    """MAGI_ATTENTION_NATIVE_GRPCOLL; no effect: there is one transport."""
    return read_flag(PREFIX + "NATIVE_GRPCOLL")


def dsink_all_reduce_op() -> str:
    """MAGI_ATTENTION_DSINK_ALL_REDUCE_OP: none (default), sum or avg over the group."""
    return read_text(PREFIX + "DSINK_ALL_REDUCE_OP", "none", ("none", "sum", "avg"))


def is_ffa_fwd_inplace_correct() -> bool:
    """MAGI_ATTENTION_FFA_FORWARD_INPLACE_CORRECT of older releases; no effect but for a
    DeprecationWarning.
    """
    return read_retired_flag(PREFIX + "FFA_FORWARD_INPLACE_CORRECT")


# What carries rows between GPUs.
TRANSPORTS = ("auto", "nvlink", "nccl", "process_group")


def transport() -> str:
    """MAGI_ATTENTION_TRANSPORT: what carries rows between GPUs. "process_group": the collectives of
    the caller's group. "nvlink": each GPU of one host writes straight into the others' memory; an
    error where that is not possible. "nccl": NCCL, called by the library, on any number of hosts,
    for tensors on GPUs alone. "auto", the default: nvlink where it is possible and the group has
    nccl, else the group. Read when a group is first used; the same on all ranks.
    """
    return read_text(PREFIX + "TRANSPORT", "auto", TRANSPORTS)
