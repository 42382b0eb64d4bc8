# SPDX-License-Identifier: Apache-2.0
"""Masks as matrices of any program, and as FlexAttention's BlockMask and mask_mod."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from magi_attention._native.handles import MaskHandle
from magi_attention._native.tensors import as_plain
from magi_attention.backends._runs import Runs, block_mask_of
from magi_attention.common._arguments import MAX_ROWS, check_int, trying
from magi_attention.masks._mask import Mask, check_mask, from_intervals, padded_runs, rows_of_runs

MaskMod = Callable[[Any, Any, Any, Any], Any]
_log = logging.getLogger("magi_attention")
_SECONDS_SILENT = 2.0
_STRIP_PAIRS = 1 << 24  # that a mask_mod is asked for at once


def from_matrix(visible: torch.Tensor) -> Mask:
    """A matrix [rows_q, rows_k]: bool or integers, not 0 where a key is seen, or floats that are
    added to scores, 0 where it is seen and -inf or the least finite value where it is not. With
    axes before them, [batch, heads, rows_q, rows_k]: sequences of a batch are packed one after the
    other; heads must agree. ValueError that names the first row with another value.
    """
    with trying("torch.as_tensor(visible)", "allowed: a torch.Tensor"):
        visible = as_plain("visible", visible).to("cpu")
    if visible.dim() == 4:
        if visible.shape[1] != 1 and not bool((visible == visible[:, :1]).all()):
            raise ValueError(
                f"visible has {visible.shape[1]} heads whose masks differ; allowed: one mask for "
                "all heads"
            )
        visible = visible[:, 0]
    if visible.dim() == 3:
        parts = [from_matrix(one) for one in visible]
        return _packed(parts, *visible.shape[1:])
    if visible.dim() != 2:
        raise ValueError(
            f"visible has {visible.dim()} axes; allowed: 2 to 4, rows_q and rows_k last; "
            "try: masks.from_document_ids of a number for each row"
        )
    if visible.is_floating_point():
        visible = _of_scores(visible)
    elif visible.dtype != torch.bool:
        visible = visible != 0
    return Mask(MaskHandle.from_matrix(visible))


def _of_scores(added: torch.Tensor) -> torch.Tensor:
    seen, hidden = added == 0, added <= torch.finfo(added.dtype).min
    other = (~(seen | hidden)).any(1).nonzero()
    if len(other):
        row = int(other[0])
        key = int((~(seen | hidden))[row].nonzero()[0])
        raise ValueError(
            f"row {row} adds {added[row, key]:g} to the score of key {key}; allowed: 0 where it is "
            "seen, -inf or the least finite value where it is not"
        )
    return seen


def _packed(parts: list[Mask], rows_q: int, rows_k: int) -> Mask:
    """Masks of equal sizes one after the other, which do not see each other."""
    bands = []
    for index, part in enumerate(parts):
        dq, dk = index * rows_q, index * rows_k
        moved = part.slices.long() + torch.tensor([dq, dq, dk, dk, 0, 0], device="cpu")
        diagonals = moved[:, 4:]
        diagonals += torch.where(diagonals.abs() < 1 << 30, dk - dq, 0)
        bands.append(moved)
    whole = torch.cat(bands).int() if bands else torch.empty(0, 6, dtype=torch.int32, device="cpu")
    return Mask(MaskHandle.from_bands(whole.contiguous(), rows_q * len(parts), rows_k * len(parts)))


def to_matrix(mask: Mask) -> torch.Tensor:
    """bool [rows_q, rows_k]."""
    check_mask(mask)
    rows, runs = rows_of_runs(mask), mask.runs[1]
    edges = torch.zeros(mask.rows_q, mask.rows_k + 1, dtype=torch.int8, device="cpu")
    edges[rows, runs[:, 0].long()] = 1
    edges[rows, runs[:, 1].long()] -= 1
    return edges[:, :-1].cumsum(1, dtype=torch.int8).bool()


def from_mask_mod(
    mask_mod: MaskMod, rows_q: int, rows_k: int, batch: int = 0, head: int = 0
) -> Mask:
    """FlexAttention's function of batch, head, query and key, asked for every pair, strip by strip
    of rows; on torch's default device, on the CPU where that is meta. The log tells how far it is
    where that takes more than two seconds: from_intervals and from_block_mask ask less.
    """
    rows_q = check_int("rows_q", rows_q, 0, MAX_ROWS)
    rows_k = check_int("rows_k", rows_k, 0, MAX_ROWS)
    strip = max(1, _STRIP_PAIRS // max(rows_k, 1))
    device = _asked_device()
    keys = torch.arange(rows_k, device=device)
    parts, logged = [], time.monotonic()
    for begin in range(0, rows_q, strip):
        if time.monotonic() - logged > _SECONDS_SILENT:
            logged = time.monotonic()
            _log.warning(
                "from_mask_mod has asked for %d of %d rows, %d keys each; try: from_intervals or "
                "from_block_mask, which ask for few pairs", begin, rows_q, rows_k,
            )  # fmt: skip
        rows = torch.arange(begin, min(begin + strip, rows_q), device=device)
        parts.append(from_matrix(_ask(mask_mod, (batch, head), rows, keys)))
    return _stacked([part.runs for part in parts], rows_k)


def _asked_device() -> torch.device:
    device = torch.get_default_device()
    return torch.device("cpu") if device.type == "meta" else device


def _ask(mask_mod: MaskMod, of: tuple[int, int], rows: torch.Tensor, keys: torch.Tensor):
    """mask_mod of every pair of rows and keys, which it is given as scalars."""
    by_key = torch.vmap(mask_mod, (None, None, None, 0))
    by_row = torch.vmap(by_key, (None, None, 0, None))
    batch, head = (torch.tensor(index, device=rows.device) for index in of)
    with _TensorsAsIndices():
        found = by_row(batch, head, rows, keys)
    return found.to("cpu").bool().expand(len(rows), len(keys))


class _TensorsAsIndices(TorchFunctionMode):
    """table[q, k] of scalars by an operator: some releases of torch ask vmap for their values."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            table, places = args
            places = [*places] if isinstance(places, tuple) else [places]
            if all(isinstance(place, (int, torch.Tensor)) for place in places):
                of_table = dict(dtype=torch.int64, device=table.device)
                places = [torch.as_tensor(p, **of_table) if type(p) is int else p for p in places]
                return torch.ops.aten.index(table, places)
        return func(*args, **(kwargs or {}))


def _stacked(parts: list[tuple[torch.Tensor, torch.Tensor]], rows_k: int) -> Mask:
    """Runs of strips of rows, one below the other."""
    offsets, runs, count = [torch.zeros(1, dtype=torch.int64, device="cpu")], [], 0
    for of_part, runs_of_part in parts:
        offsets.append(of_part[1:] + count)
        runs.append(runs_of_part)
        count += len(runs_of_part)
    empty = torch.empty(0, 2, dtype=torch.int32, device="cpu")
    return from_intervals(torch.cat(offsets), torch.cat(runs) if runs else empty, rows_k)


def to_mask_mod(mask: Mask, device: Any = None) -> MaskMod:
    """The mask as FlexAttention's mask_mod: it looks up the intervals of the query's row, in tables
    [rows_q] on `device`, torch's default if None, two for each of the most runs of a row.
    """
    check_mask(mask)
    device = torch.get_default_device() if device is None else device
    runs = padded_runs(mask, mask.rows_k)
    if runs.shape[1] == 0:
        runs = torch.full((mask.rows_q, 1, 2), mask.rows_k, device="cpu")
    # Looked up by the query alone: vmap of some releases of torch takes no number beside it.
    tables = [one.T.contiguous() for one in runs.int().to(device).unbind(1)]
    first, *others = [tuple(table.unbind(0)) for table in tables]

    def mask_mod(batch, head, q_idx, kv_idx):
        seen = (first[0][q_idx] <= kv_idx) & (kv_idx < first[1][q_idx])
        for begins, ends in others:
            seen = seen | ((begins[q_idx] <= kv_idx) & (kv_idx < ends[q_idx]))
        return seen

    return mask_mod


def from_block_mask(block_mask: Any) -> Mask:
    """FlexAttention's BlockMask: whole blocks are taken as they are, its mask_mod is asked for the
    pairs of the others, of each batch and head. ValueError where these differ.
    """
    if not hasattr(block_mask, "kv_num_blocks"):
        raise TypeError(f"block_mask is a {type(block_mask).__name__}; allowed: a BlockMask")
    tables = {
        name: _only(name, getattr(block_mask, name))
        for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    }
    rows_q, rows_k = block_mask.seq_lengths
    size_q, size_k = block_mask.BLOCK_SIZE
    num_batches, num_heads = block_mask.kv_num_blocks.shape[:2]
    of = [(batch, head) for batch in range(num_batches) for head in range(num_heads)]
    parts = []
    for block, begin in enumerate(range(0, rows_q, size_q)):
        rows = torch.arange(begin, min(begin + size_q, rows_q), device=_asked_device())
        parts.append(
            _rows_of_blocks(block_mask.mask_mod, of, tables, rows, (block, rows_k, size_k))
        )
    return _stacked(parts, rows_k)


def _only(name: str, table: torch.Tensor | None) -> torch.Tensor | None:
    if table is None:
        return None
    flat = table.flatten(0, 1)
    if len(flat) != 1 and not bool((flat == flat[:1]).all()):
        raise ValueError(
            f"{name} has {list(table.shape[:2])} batches and heads that differ; allowed: one mask"
        )
    return flat[0].to("cpu")


def _rows_of_blocks(mask_mod, of: list, tables, rows, sizes: tuple[int, int, int]):
    """Runs of a row of blocks. of: the batches and heads; sizes: the row's number, rows_k and the
    keys of a block.
    """
    block, rows_k, size = sizes
    whole, partial = [], []
    for found, prefix in ((partial, ""), (whole, "full_")):
        counts, indices = tables[f"{prefix}kv_num_blocks"], tables[f"{prefix}kv_indices"]
        if counts is not None:
            found.extend(indices[block, : int(counts[block])].tolist())
    spans = [(b * size, min((b + 1) * size, rows_k)) for b in whole]
    seen = torch.arange(len(rows), device="cpu").repeat_interleave(len(spans))
    intervals = torch.tensor(spans, dtype=torch.int32, device="cpu").view(-1, 2)
    intervals = intervals.repeat(len(rows), 1)
    if partial:
        spans = ((b * size, min((b + 1) * size, rows_k)) for b in partial)
        columns = torch.cat([torch.arange(*span, device=rows.device) for span in spans])
        first, *others = (_ask(mask_mod, one, rows, columns) for one in of)
        for one, other in zip(of[1:], others):
            if not torch.equal(first, other):
                row = int(rows[(first != other).any(1).nonzero()[0]])
                raise ValueError(
                    f"mask_mod of batch {one[0]} and head {one[1]} differs in row {row} from that "
                    "of batch 0 and head 0; allowed: one mask"
                )
        pairs = first.nonzero()
        single = columns.to("cpu")[pairs[:, 1]].int()
        seen, order = torch.cat((seen, pairs[:, 0])).sort(stable=True)
        intervals = torch.cat((intervals, torch.stack((single, single + 1), 1)))[order]
    counts = torch.bincount(seen, minlength=len(rows))
    return from_intervals(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), intervals, rows_k).runs


def to_block_mask(mask: Mask, block_size: int = 128, device: Any = None) -> Any:
    """The mask as FlexAttention's BlockMask for any batch and heads, without looking at pairs."""
    check_mask(mask)
    size = check_int("block_size", block_size, 1)
    device = torch.get_default_device() if device is None else device
    begins, ends = mask.runs[1].long().unbind(1)
    runs = Runs(rows_of_runs(mask), begins, ends, mask.rows_q, mask.rows_k)
    # Blocks that end with the sequence are not whole, as torch has it.
    return block_mask_of(runs, size, to_mask_mod(mask, device), device)
