# SPDX-License-Identifier: Apache-2.0
"""Keys, and the bound plans they stand for, per process group."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Sequence

import torch
import torch.distributed as dist

from magi_attention.bound_plan import BoundPlan, size_of
from magi_attention.common._arguments import check_kind
from magi_attention.common.enum import (
    AttnMaskType,
    AttnRole,
    MagiAttentionKernelBackend,
    MagiAttentionPrecision,
)
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.ranges import AttnRanges
from magi_attention.config import DistAttnConfig
from magi_attention.env import check_all, comm, general
from magi_attention.meta.collection.calc_meta import AttnArg
from magi_attention.plan import Plan, to_mask_types

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class DistAttnRuntimeKey:
    """What a plan on a group depends on. Made by the functions of magi_attention.api; equal keys
    stand for the same plan. The mask and total_seqlen_q, total_seqlen_k hold the padding, pad_size
    rows at the end; sizes are in rows.
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
    cp_group: "dist.ProcessGroup"
    cp_mesh: "DeviceMesh | None"
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
    placed_by: "DistAttnRuntimeKey | None" = field(default=None, repr=False)

    # The bound plan, weakly, and what a compiled graph can hold: its number, place and reach;
    # None and 0 for a key without one.
    _bound = staticmethod(lambda: None)
    _number = 0
    _place = (0, 0)
    reach = (0, 0)

    def __post_init__(self) -> None:
        parts = [getattr(self, f.name) for f in fields(self) if f.name != "cp_mesh"]
        object.__setattr__(self, "_hash", hash(tuple(parts)))

    def __hash__(self) -> int:
        return self._hash

    def name_plan(self, bound: BoundPlan) -> None:
        """Lets calls with this key find their plan without a search."""
        object.__setattr__(self, "_bound", weakref.ref(bound))
        object.__setattr__(self, "_number", bound.number)
        object.__setattr__(self, "_place", bound.place)
        object.__setattr__(self, "reach", bound.reach)


class DistAttnRuntimeMgr:
    """The methods of the original's manager over one bound plan. Made by the key functions of
    magi_attention.api and by init_dist_attn_runtime_mgr.

    dispatch_meta_q, dispatch_meta_k and attn_solver are the plan, which knows placement and slices;
    dist_attn_runtime is the plan bound to its group.
    """

    def __init__(
        self,
        dispatch_meta_q: Plan,
        dispatch_meta_k: Plan,
        dist_attn_config: DistAttnConfig,
        attn_solver: Plan,
        dist_attn_runtime: BoundPlan,
        num_heads_q: int,
        num_heads_kv: int,
        head_dim: int,
        cp_group: "dist.ProcessGroup",
        *,
        ref_q_ranges: AttnRanges,
        ref_k_ranges: AttnRanges,
        is_same_source: bool = True,
        is_q_permutable: bool = True,
        is_k_permutable: bool = True,
    ) -> None:
        check_self_attention(is_same_source, is_q_permutable, is_k_permutable)
        if not (dispatch_meta_q == dispatch_meta_k == attn_solver == dist_attn_runtime.plan):
            raise ValueError(
                "dispatch_meta_q, dispatch_meta_k, attn_solver and dist_attn_runtime hold "
                "different plans; allowed: one plan"
            )
        self.bound = self.dist_attn_runtime = dist_attn_runtime
        self.dispatch_meta_q, self.dispatch_meta_k = dispatch_meta_q, dispatch_meta_k
        self.attn_solver = attn_solver
        self.is_same_source = is_same_source
        self.is_q_permutable, self.is_k_permutable = is_q_permutable, is_k_permutable
        self.dist_attn_config = dist_attn_config
        self.num_heads_q, self.num_heads_kv = num_heads_q, num_heads_kv
        self.head_dim = head_dim
        self.cp_group = cp_group
        self.ref_q_ranges, self.ref_k_ranges = ref_q_ranges, ref_k_ranges

    @property
    def plan(self) -> Plan:
        """The plan that is run."""
        return self.bound.plan

    def dispatch_qo(self, q_or_o: torch.Tensor, pad_value: float = 0.0) -> torch.Tensor:
        """[total_seqlen, ...], the same on every rank -> this rank's rows of queries or outputs."""
        return self.bound.dispatch(q_or_o, pad_value)

    def dispatch_kv(self, k_or_v: torch.Tensor, pad_value: float = 0.0) -> torch.Tensor:
        """[total_seqlen, ...], the same on every rank -> this rank's rows of keys or values, which
        are placed as the queries.
        """
        return self.bound.dispatch(k_or_v, pad_value)

    def undispatch_qo(self, q_or_o: torch.Tensor, is_partial_grad: bool = False) -> torch.Tensor:
        """This rank's rows -> [total_seqlen, ...] on every rank. Collective."""
        return self.bound.undispatch(q_or_o, is_partial_grad)

    def undispatch_kv(self, k_or_v: torch.Tensor, is_partial_grad: bool = False) -> torch.Tensor:
        """This rank's rows -> [total_seqlen, ...] on every rank. Collective."""
        return self.bound.undispatch(k_or_v, is_partial_grad)

    def roll(self, x: torch.Tensor, shift: int, dim: int) -> torch.Tensor:
        """torch.roll of the sequence along axis `dim` of x. Collective."""
        return self.bound.roll(x, shift, dim)

    def roll_simple(self, x: torch.Tensor, shift: int, dim: int) -> torch.Tensor:
        """roll under the original's other name."""
        return self.bound.roll(x, shift, dim)

    def calc_attn(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
        return_max_logits: bool = False,
    ) -> tuple[torch.Tensor, AttnForwardMeta]:
        """As magi_attention.api.calc_attn. Collective."""
        return self.bound.calc_attn(q, k, v, sink, softmax_scale, softcap, return_max_logits)

    def get_xattn_args(
        self,
        ref_xattn_q_ranges: AttnRanges,
        ref_xattn_k_ranges: AttnRanges,
        attn_mask_type: "AttnMaskType | str | Sequence[AttnMaskType | str]",
        return_host_only: bool = False,
    ) -> AttnArg:
        """Arguments of flex_flash_attn_func for cross-attention of the placed queries to keys that
        every rank holds whole: rows ref_xattn_q_ranges[i] of the sequence see keys
        ref_xattn_k_ranges[i].

        With return_host_only for this rank's rows, else for the rows of all ranks one rank after
        the other, as an all-gather lays them out. No communication. NotImplementedError for types
        other than full, ValueError for ranges outside the sequence and lists of unequal lengths.
        """
        if len(ref_xattn_q_ranges) != len(ref_xattn_k_ranges):
            raise ValueError(
                f"ref_xattn_k_ranges has {len(ref_xattn_k_ranges)} entries; allowed: "
                f"{len(ref_xattn_q_ranges)}, as ref_xattn_q_ranges"
            )
        for mask_type in to_mask_types(attn_mask_type, len(ref_xattn_q_ranges)):
            if mask_type is not AttnMaskType.FULL:
                raise NotImplementedError(
                    f"attn_mask_type={mask_type.value} is not available; use full"
                )
        ranks = [self.bound.rank] if return_host_only else range(self.plan.cp_size)
        return _cross_slices(self.plan, ranks, ref_xattn_q_ranges, ref_xattn_k_ranges)

    def get_position_ids(self, attn_role: AttnRole = AttnRole.QUERY) -> torch.Tensor:
        """int64 [local rows]: row of the sequence, padding counts as the last row. Queries, keys
        and values are placed alike. TypeError for what is no AttnRole.
        """
        check_kind("attn_role", attn_role, AttnRole, "an AttnRole")
        return self.bound.position_ids

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DistAttnRuntimeMgr):
            return NotImplemented
        same_group = self.bound.cp_group is other.bound.cp_group
        return same_group and self.bound.plan == other.bound.plan

    __hash__ = None


def _cross_slices(
    plan: Plan, ranks: "Sequence[int]", q_ranges: AttnRanges, k_ranges: AttnRanges
) -> AttnArg:
    """Full slices of the rows of `ranks`, which lie one rank after the other."""
    for attn_range in q_ranges:
        if not 0 <= attn_range.start <= attn_range.end <= plan.total_seqlen:
            raise ValueError(
                f"ref_xattn_q_ranges holds {attn_range}; allowed: 0 to {plan.total_seqlen}"
            )
    result = AttnArg(AttnRanges(), AttnRanges(), [])
    first_row = 0
    for rank in ranks:
        own = plan.ranges_of(rank)
        for q_range, k_range in zip(q_ranges, k_ranges):
            wanted = AttnRanges.from_ranges([q_range])
            common = own.find_overlap_ranges(wanted, is_self_merged=True)
            for local in own.make_ranges_local(common, is_self_merged=True):
                result.q_ranges.append(local.offset(first_row))
                result.k_ranges.append(k_range.clone())
                result.attn_type_map.append(AttnMaskType.FULL.to_int_type())
        first_row += plan.rows_of(rank)
    return result


class DistAttnRuntimeDict(OrderedDict):
    """Managers by key; the key that was asked for longest ago leaves when max_size is passed."""

    def __init__(self, max_size: int, *args: Any, **kwargs: Any) -> None:
        self.max_size = max_size
        self.recent: DistAttnRuntimeKey | None = None
        super().__init__(*args, **kwargs)

    def __setitem__(self, key: DistAttnRuntimeKey, value: DistAttnRuntimeMgr) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        self.recent = key
        while len(self) > self.max_size:
            self.popitem(last=False)

    def get(self, key: DistAttnRuntimeKey, default: Any = None) -> Any:
        """The manager of a key, which counts as asked for, or default."""
        if key not in self:
            return default
        self.touch(key)
        return self[key]

    def touch(self, key: DistAttnRuntimeKey) -> None:
        """Makes a stored key the most recent one."""
        self.move_to_end(key)
        self.recent = key

    def get_most_recent_key(self) -> DistAttnRuntimeKey | None:
        """The key made or asked for last, or None."""
        return self.recent if self.recent in self else next(reversed(self), None)


def check_self_attention(
    is_same_source: bool, is_q_permutable: bool, is_k_permutable: bool
) -> None:
    """NotImplementedError unless queries and keys are rows of one sequence."""
    if not (is_same_source and is_q_permutable and is_k_permutable):
        raise NotImplementedError(
            f"is_same_source={is_same_source}, is_q_permutable={is_q_permutable}, "
            f"is_k_permutable={is_k_permutable} is not available; all must be True"
        )


def check_flag_comb() -> None:
    """Raises for environment variables with values that are not allowed, that exclude each other or
    that ask for what is not available; warns for older names.
    """
    check_all()
    if comm.is_qo_comm_enable():
        raise NotImplementedError("MAGI_ATTENTION_QO_COMM=1 is not available; unset it")
    if general.kernel_backend() is MagiAttentionKernelBackend.FA4:
        raise NotImplementedError(
            "MAGI_ATTENTION_KERNEL_BACKEND=fa4 is not available; use ffa or sdpa"
        )
    if comm.is_hierarchical_comm_enable() and comm.is_native_grpcoll_enable():
        raise ValueError(
            "MAGI_ATTENTION_HIERARCHICAL_COMM and MAGI_ATTENTION_NATIVE_GRPCOLL are both 1; "
            "allowed: one of them"
        )


def check_mesh(cp_mesh: "DeviceMesh | None") -> None:
    """ValueError where hierarchical communication is asked for without a 2-D mesh."""
    if comm.is_hierarchical_comm_enable() and (cp_mesh is None or cp_mesh.ndim != 2):
        raise ValueError(
            "cp_group_or_mesh is not a 2-D mesh while MAGI_ATTENTION_HIERARCHICAL_COMM is 1; "
            "allowed: a 2-D DeviceMesh"
        )


def init_dist_attn_runtime_key(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: "AttnMaskType | str | Sequence[AttnMaskType | str]",
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: int,
    chunk_size: int,
    cp_group: "dist.ProcessGroup",
    cp_mesh: "DeviceMesh | None",
    dist_attn_config: DistAttnConfig,
    placed_by: DistAttnRuntimeKey | None = None,
) -> DistAttnRuntimeKey:
    """A key from its parts and the environment variables: a value, in no cache and without a plan.
    pad_size and chunk_size in rows. placed_by: the key whose placement it keeps. The functions of
    magi_attention.api make keys together with their plans.
    """
    return DistAttnRuntimeKey(
        q_ranges=q_ranges.clone(),
        k_ranges=k_ranges.clone(),
        attn_mask_type=to_mask_types(attn_mask_type, len(q_ranges)),
        total_seqlen_q=total_seqlen_q,
        total_seqlen_k=total_seqlen_k,
        num_heads_q=num_heads_q,
        num_heads_kv=num_heads_kv,
        head_dim=head_dim,
        pad_size=pad_size,
        chunk_size=chunk_size,
        cp_group=cp_group,
        cp_mesh=cp_mesh,
        dist_attn_config=dist_attn_config,
        uneven_shard=dist_attn_config.dispatch_config.uneven_shard,
        is_deterministic_mode_enable=general.is_deterministic_mode_enable(),
        is_hierarchical_comm_enable=comm.is_hierarchical_comm_enable(),
        is_qo_comm_enable=comm.is_qo_comm_enable(),
        is_native_grpcoll_enable=comm.is_native_grpcoll_enable(),
        is_flatten_head_groups_enable=general.is_flatten_head_groups_enable(),
        kernel_backend=general.kernel_backend(),
        precision=general.precision(),
        is_auto_range_merge_enable=general.is_auto_range_merge_enable(),
        placed_by=placed_by,
    )


def init_grpcoll_buffer_mgr(
    comm_meta: Any, calc_meta: Any, attn_solver: Any, grpcoll_config: Any, cp_group: Any
) -> None:
    """Does nothing: transports size their buffers from the plan. The original's arguments."""


def init_dist_attn_runtime_mgr(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: "AttnMaskType | str | Sequence[AttnMaskType | str]",
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    chunk_size: int | None,
    cp_group: "dist.ProcessGroup",
    cp_mesh: "DeviceMesh | None" = None,
    dist_attn_config: DistAttnConfig = DistAttnConfig(),
    is_same_source: bool = True,
    is_q_permutable: bool = True,
    is_k_permutable: bool = True,
    ref_dispatch_meta_q: Plan | None = None,
    ref_dispatch_meta_k: Plan | None = None,
) -> DistAttnRuntimeMgr:
    """A manager with a new plan for the mask, in no cache; arguments as magi_attn_flex_key.
    chunk_size, rows, bounds the chunk size where it is not None. ref_dispatch_meta_q and
    ref_dispatch_meta_k: a plan whose placement is kept, the same for both.
    """
    check_flag_comb()
    check_mesh(cp_mesh)
    check_self_attention(is_same_source, is_q_permutable, is_k_permutable)
    if total_seqlen_q != total_seqlen_k:
        raise ValueError(
            f"total_seqlen_k is {total_seqlen_k}; allowed: {total_seqlen_q}, as total_seqlen_q"
        )
    if ref_dispatch_meta_q != ref_dispatch_meta_k:
        raise ValueError("ref_dispatch_meta_k is another plan; allowed: that of queries")
    config = dist_attn_config
    if chunk_size is not None:
        dispatch_config = replace(config.dispatch_config, chunk_size=chunk_size)
        config = replace(config, dispatch_config=dispatch_config)
    plan = Plan.from_ranges(
        q_ranges, k_ranges, attn_mask_type, total_seqlen_q, cp_size=size_of(cp_group),
        num_heads_q=num_heads_q, num_heads_kv=num_heads_kv, head_dim=head_dim, config=config,
        on=ref_dispatch_meta_q,
    )  # fmt: skip
    if general.is_sanity_check_enable() and plan.defects():
        raise RuntimeError(f"the plan has defects: {plan.defects()}")
    return manage(
        plan, BoundPlan(plan, cp_group), (num_heads_q, num_heads_kv, head_dim), config,
        (q_ranges, k_ranges),
    )  # fmt: skip


def manage(
    plan: Plan,
    bound: BoundPlan,
    heads: tuple[int, int, int],
    config: DistAttnConfig,
    ranges: tuple[AttnRanges, AttnRanges],
) -> DistAttnRuntimeMgr:
    """The manager of a bound plan; heads: query heads, key-value heads, head dim."""
    return DistAttnRuntimeMgr(
        plan, plan, config, plan, bound, *heads, bound.cp_group, ref_q_ranges=ranges[0].clone(),
        ref_k_ranges=ranges[1].clone(),
    )  # fmt: skip
