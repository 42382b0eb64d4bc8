# SPDX-License-Identifier: Apache-2.0
"""Masks, placements and plans of the library."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magi_attention._native import structs
from magi_attention._native.library import Handle, bytes_of, check, lib, made, take_bytes, told

if TYPE_CHECKING:
    import torch


MAX_ROWS = (1 << 30) - 1


def _int32(values: Sequence[int]) -> array:
    try:
        return array("i", values)
    except OverflowError:
        raise ValueError("rows are beyond int32; allowed: at most 2^30 - 1 rows") from None


def _address(values: array) -> int:
    return values.buffer_info()[0]


def _memory(name: str, values: torch.Tensor | array) -> int:
    if isinstance(values, array):
        return _address(values)
    from magi_attention._native.tensors import dense_memory_of

    return dense_memory_of(name, values)


def rows_of_ints(width: int, function, *arguments, kind: str = "i") -> list[tuple[int, ...]]:
    """The rows of the table [n, width] that take_bytes gives; kind: array's letter of its type."""
    values = array(kind, take_bytes(function, *arguments))
    return [tuple(values[i : i + width]) for i in range(0, len(values), width)]


class MaskHandle(Handle):
    """An immutable mask."""

    destroy = "magi_mask_destroy"
    __slots__ = ()

    @staticmethod
    def from_ranges(
        q_ranges: Sequence[tuple[int, int]],
        k_ranges: Sequence[tuple[int, int]],
        types: Sequence[int],
        rows_q: int,
        rows_k: int,
    ) -> MaskHandle:
        """Makes a mask of slices; the number of one type per slice, or of one for all."""
        q = _int32([value for bounds in q_ranges for value in bounds])
        k = _int32([value for bounds in k_ranges for value in bounds])
        kinds = _int32(types)
        return MaskHandle.from_addresses(
            (_address(q), len(q_ranges)), (_address(k), len(k_ranges)),
            (_address(kinds), len(kinds)), rows_q, rows_k,
        )  # fmt: skip

    @staticmethod
    def from_addresses(
        q_ranges: tuple[int, int],
        k_ranges: tuple[int, int],
        types: tuple[int, int],
        rows_q: int,
        rows_k: int,
    ) -> MaskHandle:
        """Makes a mask of (address, count) of int32 [n, 2], [n, 2] and [n]."""
        for rows in (rows_q, rows_k):
            if not 0 <= rows <= MAX_ROWS:  # ctypes would drop the high bits
                raise ValueError(f"rows is {rows}; allowed: 0 to {MAX_ROWS}")
        lists = structs.RangeLists(
            q_ranges=q_ranges[0], num_q_ranges=q_ranges[1],
            k_ranges=k_ranges[0], num_k_ranges=k_ranges[1],
            types=types[0], num_types=types[1], rows_q=rows_q, rows_k=rows_k,
        )  # fmt: skip
        return MaskHandle(made(lib.magi_mask_from_ranges, lists.address))

    @staticmethod
    def from_cu_seqlens(
        cu_seqlens_q: list[int] | torch.Tensor, cu_seqlens_k: list[int] | torch.Tensor, **rule: int
    ) -> MaskHandle:
        """Makes a mask of bounds, lists or int32 tensors in host memory; rule: the fields of
        magi_document_rule.
        """
        given = structs.DocumentRule(**rule)
        named = ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)
        sides = [(name, _int32(side) if isinstance(side, list) else side) for name, side in named]
        memory = (x for name, side in sides for x in (_memory(name, side), len(side)))
        return MaskHandle(made(lib.magi_mask_from_cu_seqlens, *memory, given.address))

    @staticmethod
    def from_window(
        q_range: tuple[int, int], k_range: tuple[int, int], window: tuple[int, int]
    ) -> MaskHandle:
        """One window on q_range x k_range of a sequence that ends with them."""
        given = structs.WindowMask(
            q_begin=q_range[0], q_end=q_range[1], k_begin=k_range[0], k_end=k_range[1],
            left=window[0], right=window[1], rows_q=q_range[1], rows_k=k_range[1],
        )  # fmt: skip
        return MaskHandle(made(lib.magi_mask_from_window, given.address))

    @staticmethod
    def from_form(form: str, **fields: torch.Tensor | int | None) -> MaskHandle:
        """Makes a mask of the fields of a form of docs/masks.md: ints, bools, and int32 tensors in
        host memory of one axis or, for tables, of two. None is left out.
        """
        import torch

        given, kept = [], []
        for name, value in fields.items():
            if value is None:
                continue
            if isinstance(value, int):
                value = torch.tensor([value], dtype=torch.int32, device="cpu")
            field = structs.FormField(name.encode(), _memory(name, value), value.numel())
            if value.dim() == 2:
                offsets = torch.arange(len(value) + 1, device="cpu") * value.shape[1]
                field.row_offsets, field.num_row_offsets = offsets.data_ptr(), len(offsets)
                kept.append(offsets)
            given.append(field)
            kept.append(value)
        table = (structs.FormField * len(given))(*given)
        arguments = form.encode(), ctypes.addressof(table), len(given)
        return MaskHandle(made(lib.magi_mask_from_form, *arguments))

    @staticmethod
    def from_bands(bands: torch.Tensor, rows_q: int, rows_k: int) -> MaskHandle:
        """The inverse of bands: int32 [slices, 6] in host memory."""
        arguments = _memory("bands", bands), len(bands), rows_q, rows_k
        return MaskHandle(made(lib.magi_mask_from_slices, *arguments))

    @staticmethod
    def from_json(text: bytes) -> MaskHandle:
        """Makes a mask of slices or another form as JSON; ValueError with the key that is wrong."""
        return MaskHandle(made(lib.magi_mask_from_json, text, len(text)))

    @staticmethod
    def from_runs(offsets: torch.Tensor, intervals: torch.Tensor, rows_k: int) -> MaskHandle:
        """Makes a mask of the keys of each row: int64 [rows_q + 1] and int32 [intervals, 2] in host
        memory.
        """
        return MaskHandle(
            made(
                lib.magi_mask_from_runs, _memory("offsets", offsets), len(offsets) - 1,
                _memory("intervals", intervals), len(intervals), rows_k,
            )
        )  # fmt: skip

    def runs(self) -> tuple[bytes, bytes]:
        """The inverse of from_runs; ValueError where a row sees a key in two slices."""
        offsets = ctypes.c_void_p()
        runs = take_bytes(lib.magi_mask_runs, self.address, ctypes.addressof(offsets))
        return bytes_of(offsets.value), runs

    def transposed(self) -> MaskHandle:
        """Queries and keys in each other's place."""
        return MaskHandle(made(lib.magi_mask_transpose, self.address))

    @staticmethod
    def from_matrix(visible: torch.Tensor) -> MaskHandle:
        """Makes a mask of a bool matrix [rows_q, rows_k] in host memory."""
        import torch

        matrix = visible.contiguous().view(torch.uint8)
        rows_q, rows_k = matrix.shape
        return MaskHandle(made(lib.magi_mask_from_matrix, matrix.data_ptr(), rows_q, rows_k))

    def rows(self) -> tuple[int, int]:
        """Numbers of query and key rows."""
        return self._two(lib.magi_mask_rows)

    def typed_slices(self) -> list[tuple[int, ...]]:
        """(q begin, q end, k begin, k end, number of the type) of every slice."""
        return rows_of_ints(5, lib.magi_mask_typed_slices, self.address)

    def bands(self) -> torch.Tensor:
        """int32 [slices, 6]: q begin, q end, k begin, k end, least and greatest key - query."""
        import torch

        data = take_bytes(lib.magi_mask_slices, self.address)
        if not data:
            return torch.empty((0, 6), dtype=torch.int32, device="cpu")
        return torch.frombuffer(bytearray(data), dtype=torch.int32).view(-1, 6)

    def resized(self, rows_q: int, rows_k: int) -> MaskHandle:
        """The same slices over other numbers of rows."""
        slices = take_bytes(lib.magi_mask_slices, self.address)
        count = len(slices) // 24  # bytes of six int32
        return MaskHandle(made(lib.magi_mask_from_slices, slices, count, rows_q, rows_k))

    def reach(self) -> tuple[int, int]:
        """Rows that the farthest keys lie before and after a query that sees them."""
        return self._two(lib.magi_mask_reach)

    def _two(self, function) -> tuple[int, int]:
        first = ctypes.c_int32()
        second = told(ctypes.c_int32, function, self.address, ctypes.addressof(first))
        return first.value, second

    def area(self) -> int:
        """Visible pairs; a pair in n slices counts n times."""
        return told(ctypes.c_int64, lib.magi_mask_area, self.address)

    def to_json(self) -> str:
        return take_bytes(lib.magi_mask_to_json, self.address).decode()

    def draw(self, title: str, rows: tuple[int, int] | None, keys: tuple[int, int] | None) -> str:
        """An SVG picture of the rows and keys [begin, end)."""
        name, ends = title.encode(), [_int32(part) if part else None for part in (rows, keys)]
        parts = [None if part is None else _address(part) for part in ends]
        return take_bytes(lib.magi_mask_draw_part, self.address, name, *parts).decode()


class PlacementHandle(Handle):
    """Which rank holds which chunk of rows."""

    destroy = "magi_placement_destroy"
    __slots__ = ("_info",)

    def __init__(self, address: int) -> None:
        super().__init__(address)
        self._info = structs.PlacementInfo()
        check(lib.magi_placement_get_info(address, self._info.address))

    def info(self) -> structs.PlacementInfo:
        """chunk_rank in it lives as long as this handle."""
        return self._info

    def rows_of(self, rank: int) -> int:
        return told(ctypes.c_int32, lib.magi_placement_rows_of, self.address, rank)

    def position_ids(self, rank: int, num_valid_rows: int) -> array:
        """int64 [local rows]: row of the sequence, padding clamped to the last valid row."""
        arguments = self.address, rank, num_valid_rows
        return array("q", take_bytes(lib.magi_placement_position_ids, *arguments))


class PlanHandle(Handle):
    """An immutable plan."""

    destroy = "magi_plan_destroy"
    __slots__ = ()

    @staticmethod
    def create(
        mask: MaskHandle, config: structs.PlanConfig, placement: PlacementHandle | None = None
    ) -> PlanHandle:
        """Makes a plan; with `placement` for rows that are placed already."""
        if placement is None:
            return PlanHandle(made(lib.magi_plan_create, mask.address, config.address))
        placements = (placement.address, placement.address)
        return PlanHandle(made(lib.magi_plan_create_on, mask.address, config.address, *placements))

    @staticmethod
    def from_json(text: str) -> PlanHandle:
        data = text.encode()
        return PlanHandle(made(lib.magi_plan_from_json, data, len(data)))

    def to_json(self) -> str:
        return take_bytes(lib.magi_plan_to_json, self.address).decode()

    def describe(self) -> str:
        return take_bytes(lib.magi_plan_describe, self.address).decode()

    def runs(self) -> list[tuple[int, ...]]:
        """(rank, first row, row after the last, row before or -1) of every run."""
        return rows_of_ints(4, lib.magi_plan_runs, self.address)

    def defects(self) -> str:
        """One line per defect; empty for a sound plan."""
        return take_bytes(lib.magi_plan_check, self.address).decode()

    def draw(self, picture: int, title: str) -> str:
        """An SVG picture: 0 mask, 1 placement, 2 traffic, 3 timeline, 4 steps."""
        return take_bytes(lib.magi_plan_draw, self.address, picture, title.encode()).decode()

    def equals(self, other: PlanHandle) -> bool:
        addresses = self.address, other.address
        return bool(told(ctypes.c_int32, lib.magi_plan_equal, *addresses))

    def placement(self) -> PlacementHandle:
        return PlacementHandle(made(lib.magi_plan_placement_q, self.address))

    def mask(self) -> MaskHandle:
        return MaskHandle(made(lib.magi_plan_mask, self.address))

    def report(self) -> structs.PlanReport:
        """Pointers in it live as long as this handle."""
        report = structs.PlanReport()
        check(lib.magi_plan_get_report(self.address, report.address))
        return report


def default_plan_config() -> structs.PlanConfig:
    return structs.PlanConfig.filled(lib.magi_plan_config_init)
