# SPDX-License-Identifier: Apache-2.0
"""Collectives of rows."""

from magi_attention.comm.primitive import grpcoll
from magi_attention.comm.primitive._by_rank import all2all_v, all_gather_v, scatter_v
from magi_attention.comm.primitive.grpcoll import group_cast, group_reduce

__all__ = ["all2all_v", "all_gather_v", "group_cast", "group_reduce", "grpcoll", "scatter_v"]
