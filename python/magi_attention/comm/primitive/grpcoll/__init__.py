# SPDX-License-Identifier: Apache-2.0
"""Group collectives: every split of rows to, or from, its own set of ranks."""

from magi_attention.comm.primitive.grpcoll._group_collective import group_cast, group_reduce

__all__ = ["group_cast", "group_reduce"]
