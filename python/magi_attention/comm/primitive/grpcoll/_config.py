# SPDX-License-Identifier: Apache-2.0
"""Sizes of the original's native group collectives. This library's transports size their buffers
from the plan, so the fields have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from magi_attention.common._arguments import check_int

_LSE_BYTES = 4  # of one head, float32
_SOURCE_BYTES = 8  # which row of the sender a queued row is
_COUNTER_BYTES = 4
_COUNTERS = 5  # of a queue: begin, end, head, tail, start


class Config(NamedTuple):
    """Processors, and sizes in rows of the queues between two ranks and of the pieces they move."""

    num_sms: int
    nvl_chunk_size: int
    nvl_buffer_size: int
    rdma_chunk_size: int
    rdma_buffer_size: int


def align_up(value: int, alignment: int) -> int:
    """The lowest multiple of alignment from value on."""
    if alignment < 1:
        raise ValueError(f"alignment is {alignment}; allowed: 1 or more")
    return -(-value // alignment) * alignment


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

    def to_kernel_config(self) -> Config:
        """The sizes of the queues."""
        return Config(
            self.num_sms,
            self.nvl_chunk_size,
            self.nvl_buffer_size,
            self.rdma_chunk_size,
            self.rdma_buffer_size,
        )

    def to_buffer_args(self) -> dict[str, int | bool]:
        """Arguments of the original's buffer: bytes of its two parts, queues to each rank (one
        without a part between nodes, else num_sms) and its two switches.
        """
        return {
            "num_nvl_bytes": self.num_nvl_bytes,
            "num_rdma_bytes": self.num_rdma_bytes,
            "num_qps_per_rank": self.num_sms if self.num_rdma_bytes else 1,
            "low_latency_mode": False,
            "explicitly_destroy": True,
        }

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

    @staticmethod
    def get_min_num_bytes_intranode(
        num_sms: int,
        num_ranks: int,
        hidden_size: int,
        nvl_buffer_size: int,
        dtype: torch.dtype,
        transfer_lse: bool = False,
        num_heads: int | None = None,
        num_groups: int = 1,
        alignment: int = 128,
    ) -> int:
        """Bytes that one rank's queues inside a node take: num_sms / 2 channels, one queue of
        nvl_buffer_size rows per channel and rank. A row has num_groups tensors of hidden_size
        elements and with transfer_lse num_heads float32. A multiple of alignment. For sizing the
        original's buffers; nothing here allocates them.
        """
        row = _row_bytes(hidden_size, dtype, transfer_lse, num_heads, num_groups)
        queues = _channels(num_sms) * _positive("num_ranks", num_ranks)
        return align_up(queues * _queue_bytes(nvl_buffer_size, row), alignment)

    @staticmethod
    def get_min_num_bytes_internode(
        num_sms: int,
        num_rdma_ranks: int,
        num_nvl_ranks: int,
        hidden_size: int,
        rdma_buffer_size: int,
        nvl_buffer_size: int,
        dtype: torch.dtype,
        transfer_lse: bool = False,
        num_heads: int | None = None,
        num_groups: int = 1,
        rdma_decoulped: bool = True,
        alignment: int = 128,
    ) -> tuple[int, int]:
        """(bytes of the queues between nodes, bytes of those inside one): as
        get_min_num_bytes_intranode, with one queue per channel and node in the first, twice with
        rdma_decoulped (one to send, one to receive), and one per channel, rank of the node and node
        in the second.
        """
        row = _row_bytes(hidden_size, dtype, transfer_lse, num_heads, num_groups)
        nodes = _channels(num_sms) * _positive("num_rdma_ranks", num_rdma_ranks)
        sides = 2 if rdma_decoulped else 1
        rdma = sides * nodes * _queue_bytes(rdma_buffer_size, row)
        nvl = nodes * _positive("num_nvl_ranks", num_nvl_ranks)
        nvl *= _queue_bytes(nvl_buffer_size, row)
        return align_up(rdma, alignment), align_up(nvl, alignment)


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


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} is {value}; allowed: 1 or more")
    return value


def _channels(num_sms: int) -> int:
    if num_sms < 2 or num_sms % 2:
        raise ValueError(f"num_sms is {num_sms}; allowed: even, 2 or more")
    return num_sms // 2


def _queue_bytes(num_rows: int, row_bytes: int) -> int:
    return _positive("buffer_size", num_rows) * row_bytes + _COUNTERS * _COUNTER_BYTES


def _row_bytes(
    hidden_size: int, dtype: torch.dtype, transfer_lse: bool, num_heads: int | None, num_groups: int
) -> int:
    if transfer_lse and not num_heads:
        raise ValueError(f"num_heads is {num_heads} with transfer_lse; allowed: 1 or more")
    elements = _positive("hidden_size", hidden_size) * _positive("num_groups", num_groups)
    lse = num_heads * _LSE_BYTES if transfer_lse else 0
    return elements * dtype.itemsize + lse + _SOURCE_BYTES
