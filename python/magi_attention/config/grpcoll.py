# SPDX-License-Identifier: Apache-2.0
"""Sizes of the original's native group collectives. This library's transports size their buffers
from the plan, so the fields have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

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
        for part in fields(self):
            lowest = 0 if part.name.endswith("_bytes") else 1
            check_int(part.name, getattr(self, part.name), lowest)
