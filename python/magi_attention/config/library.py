# SPDX-License-Identifier: Apache-2.0
"""Options of plans, and what plans are made of, in the library's terms."""

from __future__ import annotations

import functools

from magi_attention._native import structs
from magi_attention._native.handles import (
    MaskHandle,
    PlacementHandle,
    PlanHandle,
    default_plan_config,
)
from magi_attention._native.library import check, lib
from magi_attention.common._arguments import MAX_ROWS, check_int, naming
from magi_attention.common._slices import check_inside
from magi_attention.common.enum import AttnMaskType, DispatchAlgType
from magi_attention.common.ranges import AttnRanges
from magi_attention.config.dispatch import DispatchConfig
from magi_attention.config.dist_attn import WORK_MODES, DistAttnConfig
from magi_attention.env import comm, general

MAX_NODE = 1 << 12  # ranks
_MAX_SIZE = 1 << 16  # of numbers of heads and head dims
_NO_BOUND = -1
_CHOSEN = len(WORK_MODES)  # MAGI_WORK_CHOSEN
COST_VARIABLE = "MAGI_ATTENTION_COST_FILE"
# MagiAttention's algorithms that the library has no own one for.
_PLACED_AS = {
    DispatchAlgType.LOWER_BOUND: DispatchAlgType.MIN_HEAP,
    DispatchAlgType.DYNAMIC_PROGRAMMING: DispatchAlgType.MIN_HEAP,
    DispatchAlgType.BINARY_SEARCH: DispatchAlgType.MIN_HEAP,
    DispatchAlgType.BACKTRACKING_PRUNING: DispatchAlgType.MIN_HEAP,
    DispatchAlgType.SORTED_SEQUENTIAL_SELECT: DispatchAlgType.MIN_HEAP,
    DispatchAlgType.TOPP_HEAP: DispatchAlgType.AUTO,
    DispatchAlgType.BATCH_TOPP_HEAP: DispatchAlgType.AUTO,
}


def to_plan_config(config: DistAttnConfig) -> structs.PlanConfig:
    """The library's defaults with these overlap stages and what travels, and the constants of the
    environment's cost file. ValueError for a file that cannot be read or that is none.
    """
    overlap = config.overlap_config
    native = default_plan_config()
    work = _work_of(config)
    native.work = _CHOSEN if work is None else WORK_MODES.index(work)
    native.head_shares = config.head_shares
    if config.max_exchange_bytes is not None:
        native.max_exchange_bytes = config.max_exchange_bytes or _NO_BOUND
    path = general.cost_file()
    if path:
        _read_cost_file(native, path)
    degree = 0 if overlap.no_overlap else overlap.degree
    native.overlap_degree = -1 if degree is None else degree
    native.max_runs = min(config.dispatch_config.max_runs or 0, MAX_ROWS)
    native.min_stage_rows = min(overlap.min_chunk_size, MAX_ROWS)
    return native


def _work_of(config: DistAttnConfig) -> str | None:
    if config.work is not None:
        return config.work
    if general.is_flatten_head_groups_enable():
        return "heads"
    if comm.is_qo_comm_enable():
        return "queries"
    return "auto" if config.dispatch_config.layout == "contiguous" else None


@functools.cache
def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read_cost_file(native: structs.PlanConfig, path: str) -> None:
    try:
        text = _content(path)
        check(lib.magi_plan_config_read_cost(native.address, text, len(text)))
    except OSError as error:
        raise ValueError(
            f"{COST_VARIABLE} is {path!r}, which cannot be read ({error.strerror}); "
            "allowed: a cost file"
        ) from None
    except ValueError as error:
        raise ValueError(f"{COST_VARIABLE} is {path!r}: {error}") from None


def to_placement_config(dispatch: DispatchConfig) -> structs.PlacementConfig:
    """The library's defaults with this placement."""
    native = structs.PlacementConfig.filled(lib.magi_placement_config_init)
    is_in_order = dispatch.layout == "contiguous"
    alg = DispatchAlgType.SEQUENTIAL_SELECT if is_in_order else dispatch.alg.type
    native.algorithm = _PLACED_AS.get(alg, alg).value.encode()
    native.chunk_size = min(dispatch.chunk_size or 0, MAX_ROWS)
    native.uneven_shard = dispatch.uneven_shard
    native.min_chunks_per_rank = min(general.min_chunks_per_rank(), MAX_ROWS)
    return native


def plan_sizes(
    cp_size: int, num_heads_q: int, num_heads_kv: int, head_dim: int, head_dim_v: int | None
) -> tuple[int, ...]:
    """The sizes of a plan, as to_plan takes them; head_dim_v None: as head_dim."""
    named = (
        ("cp_size", cp_size),
        ("num_heads_q", num_heads_q),
        ("num_heads_kv", num_heads_kv),
        ("head_dim", head_dim),
        ("head_dim_v", head_dim if head_dim_v is None else head_dim_v),
    )
    return tuple(check_int(name, size, 1, _MAX_SIZE) for name, size in named)


def to_plan(
    mask: MaskHandle,
    sizes: tuple[int, ...],
    config: DistAttnConfig,
    placement: PlacementHandle | None,
    devices_per_node: int,
) -> PlanHandle:
    """The plan of a mask; sizes: of plan_sizes; placement: that of rows which lie already."""
    native = to_plan_config(config)
    native.num_ranks, native.num_heads_q, native.num_heads_kv = sizes[:3]
    native.head_dim_qk, native.head_dim_v = sizes[3:]
    native.devices_per_node = check_int("devices_per_node", devices_per_node, 0, MAX_NODE)
    placement_config = to_placement_config(config.dispatch_config)
    native.placement = placement_config.address
    with naming(num_ranks="cp_size", head_dim_qk="head_dim", overlap_degree="degree"):
        return PlanHandle.create(mask, native, placement)


def to_mask(
    q_ranges: AttnRanges, k_ranges: AttnRanges, types: tuple[AttnMaskType, ...], rows: int
) -> MaskHandle:
    """The mask of slices of a sequence of so many rows; ValueError by name for a bad range."""
    numbers = [mask_type.to_int_type() for mask_type in types]
    try:
        slices = q_ranges.to_naive_ranges(), k_ranges.to_naive_ranges()
        return MaskHandle.from_ranges(*slices, numbers, rows, rows)
    except (TypeError, ValueError):  # the first bad range by its name, where it is one
        check_inside("q_ranges", q_ranges, rows)
        check_inside("k_ranges", k_ranges, rows)
        raise
