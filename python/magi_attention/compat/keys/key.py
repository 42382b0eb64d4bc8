# SPDX-License-Identifier: Apache-2.0
"""What a plan on a group depends on, as one value."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, fields
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._group_holders import holds_groups
from magi_attention.common._slices import MaskTypes, to_mask_types
from magi_attention.common.enum import (
    AttnMaskType,
    MagiAttentionKernelBackend,
    MagiAttentionPrecision,
)
from magi_attention.common.ranges import AttnRanges
from magi_attention.config import DistAttnConfig
from magi_attention.env import comm, general
from magi_attention.functional._rank_attention import NO_SHAPE
from magi_attention.plan import BoundPlan


@dataclass(frozen=True)
class DistAttnRuntimeKey:
    """The values that a plan on a group depends on. Made by the functions of magi_attention.api;
    equal keys stand for the same plan. The mask and total_seqlen_q, total_seqlen_k hold the
    padding, pad_size rows at the end; sizes are in rows. A copy is the key itself; pickling raises
    TypeError.
    """

    q_ranges: AttnRanges
    k_ranges: AttnRanges
    attn_mask_type: tuple[AttnMaskType, ...]
    total_seqlen_q: int
    total_seqlen_k: int
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    pad_size: int
    chunk_size: int
    cp_group: dist.ProcessGroup
    cp_mesh: DeviceMesh | None
    dist_attn_config: DistAttnConfig
    uneven_shard: bool
    is_deterministic_mode_enable: bool
    is_hierarchical_comm_enable: bool
    is_qo_comm_enable: bool
    is_native_grpcoll_enable: bool
    is_flatten_head_groups_enable: bool
    kernel_backend: MagiAttentionKernelBackend
    precision: MagiAttentionPrecision | None
    is_auto_range_merge_enable: bool
    # The key whose placement this one keeps: keys of one mask on different placements differ.
    placed_by: DistAttnRuntimeKey | None = field(default=None, repr=False)
    cost_file: str = field(default="", repr=False)
    head_dim_v: int = 0  # 0: as head_dim

    # What calls with this key need of its bound plan: its attention, weakly; the number and
    # local shape of that, which a compiled graph can hold; its reach. None and 0 for a key without.
    _attention = staticmethod(lambda: None)
    _number = 0
    _local_shape = NO_SHAPE
    reach = (0, 0)

    @property
    def is_range_merge_enable(self) -> bool:
        """is_auto_range_merge_enable under its present name."""
        return self.is_auto_range_merge_enable

    def __post_init__(self) -> None:
        object.__setattr__(self, "head_dim_v", self.head_dim_v or self.head_dim)
        parts = [getattr(self, f.name) for f in fields(self) if f.name != "cp_mesh"]
        object.__setattr__(self, "_hash", hash(tuple(parts)))
        holds_groups(self, "cp_group", "cp_mesh")
        known = _names.get(self)
        first = None if known is None else known.first()
        if first is not None:
            self.__dict__.update(known.told, _first=first)

    def __hash__(self) -> int:
        return self._hash

    def __copy__(self) -> DistAttnRuntimeKey:
        return self

    def __deepcopy__(self, memo: dict) -> DistAttnRuntimeKey:
        return self

    def __reduce__(self):
        raise TypeError(
            "key cannot be pickled, as it stands for a plan on a process group of this process; "
            "allowed: its plan, dist_attn_runtime_dict_mgr[key].plan, and Plan.bind(group) of that "
            "in the other process"
        )

    def name_plan(self, bound: BoundPlan) -> None:
        """Lets calls with this key find their plan without a search."""
        known = _names.get(self)
        first = None if known is None else known.first()
        if first is None:
            known = _names[self] = _Known(weakref.ref(self))
        elif first is not self:
            self.__dict__["_first"] = first
        known.told = {
            "_attention": weakref.ref(bound.attention),
            "_number": bound.attention.number,
            "_local_shape": bound.attention.local_shape,
            "reach": bound.reach,
        }
        self.__dict__.update(known.told)


class _Known:
    """The names that name_plan gave to a key and of those equal to it. first: the one that it was
    told of first, which stands in _names; the others hold it, so that it lives as long as any of
    them.
    """

    def __init__(self, first: weakref.ref[DistAttnRuntimeKey]) -> None:
        self.first = first
        self.told: dict[str, Any] = {}


# For equal keys that others make field by field: FSDP does so with each dataclass among the
# arguments of a call that it casts.
_names: weakref.WeakKeyDictionary[DistAttnRuntimeKey, _Known] = weakref.WeakKeyDictionary()


def init_dist_attn_runtime_key(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: MaskTypes,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: int,
    chunk_size: int,
    cp_group: dist.ProcessGroup,
    cp_mesh: DeviceMesh | None,
    dist_attn_config: DistAttnConfig,
    placed_by: DistAttnRuntimeKey | None = None,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:
    """A key from its parts and the environment variables: a value, in no cache and without a plan.
    pad_size and chunk_size in rows. placed_by: the key whose placement it keeps. head_dim_v None:
    as head_dim. The functions of magi_attention.api make keys together with their plans.
    """
    return DistAttnRuntimeKey(
        q_ranges=q_ranges.clone(), k_ranges=k_ranges.clone(),
        attn_mask_type=to_mask_types(attn_mask_type, len(q_ranges)), total_seqlen_q=total_seqlen_q,
        total_seqlen_k=total_seqlen_k, num_heads_q=num_heads_q, num_heads_kv=num_heads_kv,
        head_dim=head_dim, pad_size=pad_size, chunk_size=chunk_size, cp_group=cp_group,
        cp_mesh=cp_mesh, dist_attn_config=dist_attn_config,
        uneven_shard=dist_attn_config.dispatch_config.uneven_shard,
        is_deterministic_mode_enable=general.is_deterministic_mode_enable(),
        is_hierarchical_comm_enable=comm.is_hierarchical_comm_enable(),
        is_qo_comm_enable=comm.is_qo_comm_enable(),
        is_native_grpcoll_enable=comm.is_native_grpcoll_enable(),
        is_flatten_head_groups_enable=general.is_flatten_head_groups_enable(),
        kernel_backend=general.kernel_backend(), precision=general.precision(),
        is_auto_range_merge_enable=general.is_range_merge_enable(), placed_by=placed_by,
        cost_file=general.cost_file(), head_dim_v=head_dim_v or head_dim,
    )  # fmt: skip
