# SPDX-License-Identifier: Apache-2.0
"""Sizes of the original's native group collectives. This library's transports size their buffers
from the plan, so the fields have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from magi_attention.common._arguments import check_int


@dataclass(frozen=True)
class GrpCollConfig:
    """Processor and buffer sizes, accepted and kept; num_nvl_bytes and num_rdma_bytes in bytes."""

    num_sms: int = 24
    nvl_chunk_size: int = 8
    nvl_buffer_size: int = 256
    rdma_chunk_size: int = 16
    rdma_buffer_size: int = 128
    num_nvl_bytes: int = int(2e9)
    num_rdma_bytes: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (
            ("num_sms", 1),
            ("nvl_chunk_size", 1),
            ("nvl_buffer_size", 1),
            ("rdma_chunk_size", 1),
            ("rdma_buffer_size", 1),
            ("num_nvl_bytes", 0),
            ("num_rdma_bytes", 0),
        ):
            check_int(name, getattr(self, name), lowest)

    @staticmethod
    def get_default_group_cast_config(num_ranks: int) -> GrpCollConfig:
        """The original's sizes for a cast among 2, 4, 8, 16, 24, 32, 64, 128, 144 or 160 ranks;
        ValueError for other numbers. They have no effect here.
        """
        return _tuned(_CAST_SIZES, num_ranks)

    @staticmethod
    def get_default_group_reduce_config(num_ranks: int) -> GrpCollConfig:
        """The original's sizes for a reduce among 2, 4, 8, 16, 24, 32, 64, 128, 144 or 160 ranks;
        ValueError for other numbers. They have no effect here.
        """
        return _tuned(_REDUCE_SIZES, num_ranks)


# By ranks: chunk and queue inside a node, chunk and queue between nodes, in rows.
_CAST_SIZES = {
    2: (24, 256, 6, 128), 4: (6, 256, 6, 128), 8: (6, 256, 6, 128), 16: (36, 288, 20, 128),
    24: (8, 288, 32, 128), 32: (32, 288, 32, 128), 64: (20, 288, 28, 128),
    128: (20, 560, 32, 128), 144: (32, 720, 12, 128), 160: (28, 720, 12, 128),
}  # fmt: skip
_REDUCE_SIZES = {
    2: (10, 256, 6, 128), 4: (9, 256, 6, 128), 8: (4, 256, 6, 128), 16: (4, 288, 12, 128),
    24: (1, 288, 8, 128), 32: (1, 288, 8, 128), 64: (1, 288, 20, 128), 128: (1, 560, 12, 128),
    144: (2, 720, 8, 128), 160: (2, 720, 8, 128),
}  # fmt: skip


def _tuned(sizes: dict[int, tuple[int, int, int, int]], num_ranks: int) -> GrpCollConfig:
    if num_ranks not in sizes:
        allowed = ", ".join(map(str, sizes))
        raise ValueError(f"num_ranks is {num_ranks}; allowed: {allowed}")
    return GrpCollConfig(GrpCollConfig.num_sms, *sizes[num_ranks])
