# SPDX-License-Identifier: Apache-2.0
"""Plans of batches of the library."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_void_p

from magi_attention._native.handles import MaskHandle, PlacementHandle, rows_of_ints
from magi_attention._native.library import Handle, check, describe, lib, made, take_bytes
from magi_attention._native.structs import Sized, fields

describe(
    {
        "magi_batch_create": "pppqp", "magi_batch_from_json": "szp", "magi_batch_to_json": "pp",
        "magi_batch_check": "pp", "magi_batch_draw": "psp", "magi_batch_parts": "pp",
        "magi_batch_packed": "pip", "magi_batch_mask": "pipqp", "magi_batch_placement": "pipp",
        "magi_batch_get_report": "pp",
    },
    {"magi_batch_config_init": "p", "magi_batch_destroy": "p"},
)  # fmt: skip


class BatchConfig(Sized):
    _fields_ = fields(
        "z struct_size, i num_ranks, i rows_per_rank, i devices_per_node, i num_micro_batches, "
        "i chunk_size, d flops_per_token, d flops_per_pair, d bytes_per_token, "
        "d flops_per_second, d bytes_per_second, d network_bytes_per_second"
    )


class BatchReport(Sized):
    _fields_ = fields(
        "z struct_size, i num_micro_batches, i num_ranks, i chunk_size, Q rank_rows, "
        "D rank_seconds, d step_seconds, d lower_bound_seconds, q node_bytes, q network_bytes",
        D=POINTER(c_double),
    )


class BatchHandle(Handle):
    """An immutable plan of a batch."""

    destroy = "magi_batch_destroy"
    __slots__ = ()

    @staticmethod
    def create(config: BatchConfig, rows: Sequence[int], pairs: Sequence[int]) -> BatchHandle:
        lengths, areas = array("i", rows), array("q", pairs)
        given = lengths.buffer_info()[0], areas.buffer_info()[0], len(lengths)
        return BatchHandle(made(lib.magi_batch_create, config.address, *given))

    @staticmethod
    def from_json(text: str) -> BatchHandle:
        data = text.encode()
        return BatchHandle(made(lib.magi_batch_from_json, data, len(data)))

    def to_json(self) -> str:
        return take_bytes(lib.magi_batch_to_json, self.address).decode()

    def defects(self) -> str:
        """One line per defect; empty for a sound plan."""
        return take_bytes(lib.magi_batch_check, self.address).decode()

    def draw(self, title: str) -> str:
        return take_bytes(lib.magi_batch_draw, self.address, title.encode()).decode()

    def parts(self) -> list[tuple[int, ...]]:
        """(micro-batch, sample, rank, rows) of every part."""
        return rows_of_ints(4, lib.magi_batch_parts, self.address)

    def packed(self, micro_batch: int) -> list[tuple[int, ...]]:
        """(sample, first row) of every sample of a micro-batch."""
        return rows_of_ints(2, lib.magi_batch_packed, self.address, micro_batch)

    def mask(self, micro_batch: int, masks: Sequence[MaskHandle]) -> MaskHandle:
        given = (c_void_p * len(masks))(*(one.address for one in masks))
        arguments = self.address, micro_batch, ctypes.addressof(given), len(masks)
        return MaskHandle(made(lib.magi_batch_mask, *arguments))

    def placement(self, micro_batch: int, mask: MaskHandle) -> PlacementHandle:
        arguments = self.address, micro_batch, mask.address
        return PlacementHandle(made(lib.magi_batch_placement, *arguments))

    def report(self) -> BatchReport:
        """Pointers in it live as long as this handle."""
        report = BatchReport()
        check(lib.magi_batch_get_report(self.address, report.address))
        return report
