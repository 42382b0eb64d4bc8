# SPDX-License-Identifier: Apache-2.0
"""The original's manager of one plan on one group, and checks of flags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._group_holders import holds_groups
from magi_attention.comm.group import rank_tuple, size_of
from magi_attention.common._arguments import as_bool, check_kind
from magi_attention.common._slices import MaskTypes, check_equally_many, to_mask_types
from magi_attention.common.enum import AttnMaskType, AttnRole
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat.attn_arg import AttnArg
from magi_attention.config import DistAttnConfig
from magi_attention.env import apply_log_level, check_all, comm, general
from magi_attention.plan import BoundPlan, Plan


def check_self_attention(
    is_same_source: bool, is_q_permutable: bool, is_k_permutable: bool
) -> None:
    """NotImplementedError unless queries and keys are rows of one sequence."""
    named = ("is_same_source", is_same_source), ("is_q_permutable", is_q_permutable)
    if not all(as_bool(*pair) for pair in (*named, ("is_k_permutable", is_k_permutable))):
        raise NotImplementedError(
            f"is_same_source={is_same_source}, is_q_permutable={is_q_permutable}, "
            f"is_k_permutable={is_k_permutable} is not available; all must be True"
        )


def check_flag_comb() -> None:
    """Raises for environment variables with values that are not allowed; warns for older names.
    Sets the level of the logger.
    """
    check_all()
    apply_log_level()


def devices_per_node(cp_mesh: DeviceMesh | None, cp_group: dist.ProcessGroup) -> int:
    """Ranks of a row of the mesh, which is a node, where hierarchical communication is asked for;
    else 0. cp_group: the mesh's. ValueError without a 2-D mesh, and for one whose rows are not runs
    of the group's ranks.
    """
    if not comm.is_hierarchical_comm_enable():
        return 0
    if cp_mesh is None or cp_mesh.ndim != 2:
        raise ValueError(
            "cp_group_or_mesh is not a 2-D mesh while MAGI_ATTENTION_HIERARCHICAL_COMM is 1; "
            "allowed: a 2-D DeviceMesh"
        )
    ranks = dist.get_process_group_ranks(cp_group)
    size = cp_mesh.size(1)
    nodes = [sorted(row) for row in cp_mesh.mesh.tolist()]
    for first in range(0, len(ranks), size):
        if sorted(ranks[first : first + size]) not in nodes:
            raise ValueError(
                f"cp_group_or_mesh has rows {nodes}, which its group of ranks {ranks} does "
                "not hold one behind the other; allowed: a 2-D DeviceMesh of which each row, a "
                "node, is a run of the group's ranks"
            )
    return size


def cross_slices(
    plan: Plan, only_rank: int | None, q_ranges: AttnRanges, k_ranges: AttnRanges
) -> AttnArg:
    """Full slices of the local rows of a rank, or with None of the rows of the sequence."""
    for attn_range in q_ranges:
        if not 0 <= attn_range.start <= attn_range.end <= plan.total_seqlen:
            raise ValueError(
                f"ref_xattn_q_ranges holds {attn_range}; allowed: 0 to {plan.total_seqlen}"
            )
    slices = AttnRanges(), AttnRanges(), []
    for rank in range(plan.cp_size) if only_rank is None else [only_rank]:
        own = plan.ranges_of(rank)
        for q_range, k_range in zip(q_ranges, k_ranges):
            wanted = AttnRanges.from_ranges([q_range])
            rows = own.find_overlap_ranges(wanted, is_self_merged=True)
            if only_rank is not None:
                rows = own.make_ranges_local(rows, is_self_merged=True)
            for q_rows in rows:
                slices[0].append(q_rows)
                slices[1].append(k_range.clone())
                slices[2].append(AttnMaskType.FULL.to_int_type())
    return AttnArg(*slices)


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
        cp_group: dist.ProcessGroup,
        *,
        ref_q_ranges: AttnRanges,
        ref_k_ranges: AttnRanges,
        is_same_source: bool = True,
        is_q_permutable: bool = True,
        is_k_permutable: bool = True,
        num_positions: int | None = None,
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
        if num_positions is None:
            num_positions = seen_rows(ref_q_ranges, ref_k_ranges)
        self._last_position = num_positions - 1
        holds_groups(self, "cp_group")

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
        """Does what magi_attention.api.calc_attn does. Collective."""
        return self.bound.calc_attn(q, k, v, sink, softmax_scale, softcap, return_max_logits)

    def get_xattn_args(
        self,
        ref_xattn_q_ranges: AttnRanges,
        ref_xattn_k_ranges: AttnRanges,
        attn_mask_type: MaskTypes,
        return_host_only: bool = False,
    ) -> AttnArg:
        """Arguments of flex_flash_attn_func for cross-attention of the placed queries to keys that
        every rank holds whole: rows ref_xattn_q_ranges[i] of the sequence see keys
        ref_xattn_k_ranges[i].

        With return_host_only for this rank's local rows, else for the undispatched tensor: rows of
        the sequence, of one rank after the other. No communication. NotImplementedError for types
        other than full, ValueError for ranges outside the sequence and lists of unequal lengths.
        """
        names = "ref_xattn_k_ranges", "ref_xattn_q_ranges"
        check_equally_many(ref_xattn_q_ranges, ref_xattn_k_ranges, *names)
        for mask_type in to_mask_types(attn_mask_type, len(ref_xattn_q_ranges)):
            if mask_type is not AttnMaskType.FULL:
                raise NotImplementedError(
                    f"attn_mask_type={mask_type.value} is not available; use full"
                )
        only_rank = self.bound.rank if return_host_only else None
        return cross_slices(self.plan, only_rank, ref_xattn_q_ranges, ref_xattn_k_ranges)

    def get_position_ids(self, attn_role: AttnRole = AttnRole.QUERY) -> torch.Tensor:
        """int64 [local rows]: row of the sequence. Rows after the last one with keys, padding too,
        count as that. Queries, keys and values are placed alike. TypeError for what is no AttnRole.
        """
        check_kind("attn_role", attn_role, AttnRole, "an AttnRole")
        ids = self.bound.position_ids
        if not 0 <= self._last_position < self.plan.total_seqlen - 1:
            return ids
        return ids.clamp(max=self._last_position)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DistAttnRuntimeMgr):
            return NotImplemented
        if rank_tuple(self.bound.cp_group) != rank_tuple(other.bound.cp_group):
            return False
        return self.plan == other.plan or self._essence() == other._essence()

    __hash__ = None

    def _essence(self) -> tuple:
        """The attention that is run, whether the mask names its padding or not."""
        plan = self.plan
        bands = [b for b in plan.handle.mask().bands().tolist() if b[0] < b[1] and b[2] < b[3]]
        return (
            plan.padded_seqlen, plan.chunk_size, plan.chunk_ranks, sorted(bands), self.num_heads_q,
            self.num_heads_kv, self.head_dim, plan.report.head_dim_v,
            self.dist_attn_config.overlap_config,
        )  # fmt: skip


def init_grpcoll_buffer_mgr(
    comm_meta: Any, calc_meta: Any, attn_solver: Any, grpcoll_config: Any, cp_group: Any
) -> None:
    """Does nothing: transports size their buffers from the plan. The original's arguments."""


def init_dist_attn_runtime_mgr(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: MaskTypes,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    chunk_size: int | None,
    cp_group: dist.ProcessGroup,
    cp_mesh: DeviceMesh | None = None,
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
    check_self_attention(is_same_source, is_q_permutable, is_k_permutable)
    if total_seqlen_q != total_seqlen_k:
        raise ValueError(
            f"total_seqlen_k is {total_seqlen_k}; allowed: {total_seqlen_q}, as total_seqlen_q"
        )
    if ref_dispatch_meta_q != ref_dispatch_meta_k:
        raise ValueError("ref_dispatch_meta_k is another plan; allowed: that of queries")
    config = with_chunk_size(dist_attn_config, chunk_size)
    heads = num_heads_q, num_heads_kv, head_dim
    mask = q_ranges, k_ranges, attn_mask_type, total_seqlen_q
    plan = make_plan(mask, heads, (cp_group, cp_mesh), config, ref_dispatch_meta_q)
    return manage(plan, BoundPlan(plan, cp_group), heads, config, (q_ranges, k_ranges))


def make_plan(
    mask: tuple,
    heads: tuple[int, ...],
    group: tuple[dist.ProcessGroup, DeviceMesh | None],
    config: DistAttnConfig,
    on: Plan | None,
) -> Plan:
    """A plan for a group and its mesh; mask: q_ranges, k_ranges, types and rows; heads: of queries
    and of keys, head dim, and that of v if it differs; on: the plan whose placement is kept.
    """
    cp_group, mesh = group
    plan = Plan.from_ranges(
        *mask, cp_size=size_of(cp_group), num_heads_q=heads[0], num_heads_kv=heads[1],
        head_dim=heads[2], head_dim_v=heads[-1] if len(heads) > 3 else None, config=config, on=on,
        devices_per_node=devices_per_node(mesh, cp_group),
    )  # fmt: skip
    if general.is_sanity_check_enable() and plan.defects():
        raise RuntimeError(f"the plan has defects: {plan.defects()}")
    return plan


def manage(
    plan: Plan,
    bound: BoundPlan,
    heads: tuple[int, int, int],
    config: DistAttnConfig,
    ranges: tuple[AttnRanges, AttnRanges],
    num_positions: int | None = None,
) -> DistAttnRuntimeMgr:
    """The manager of a bound plan; heads: query heads, key-value heads, head dim. num_positions:
    seen_rows of the mask that rows were placed for, None: of this one.
    """
    return DistAttnRuntimeMgr(
        plan, plan, config, plan, bound, *heads, bound.cp_group, ref_q_ranges=ranges[0].clone(),
        ref_k_ranges=ranges[1].clone(), num_positions=num_positions,
    )  # fmt: skip


def seen_rows(q_ranges: AttnRanges, k_ranges: AttnRanges) -> int:
    """Rows up to the last one that a range with keys holds, 0 for none."""
    pairs = zip(q_ranges, k_ranges)
    return max((q.end for q, k in pairs if q.end > q.start and k.end > k.start), default=0)


def with_chunk_size(config: DistAttnConfig, chunk_size: int | None) -> DistAttnConfig:
    """The configuration with another chunk size, itself for None."""
    if chunk_size is None:
        return config
    dispatch_config = replace(config.dispatch_config, chunk_size=chunk_size)
    return replace(config, dispatch_config=dispatch_config)
