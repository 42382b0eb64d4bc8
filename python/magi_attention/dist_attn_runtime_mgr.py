# SPDX-License-Identifier: Apache-2.0
"""Keys, and the bound plans they stand for, per process group."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from magi_attention.bound_plan import BoundPlan
from magi_attention.common.enum import (
    AttnMaskType,
    AttnRole,
    MagiAttentionKernelBackend,
    MagiAttentionPrecision,
)
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.ranges import AttnRanges
from magi_attention.config import DistAttnConfig
from magi_attention.env import comm, general

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class DistAttnRuntimeKey:
    """What a plan on a group depends on. Made by the functions of magi_attention.api; equal keys
    stand for the same plan.
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

    # Number, rank and local rows of the bound plan; 0 for a key that no plan was made for.
    _number = 0
    _place = (0, 0)

    def __post_init__(self) -> None:
        parts = [getattr(self, f.name) for f in fields(self) if f.name != "cp_mesh"]
        object.__setattr__(self, "_hash", hash(tuple(parts)))

    def __hash__(self) -> int:
        return self._hash

    def name_plan(self, bound: BoundPlan) -> None:
        """Lets calls with this key find their plan without a search."""
        object.__setattr__(self, "_number", bound.number)
        object.__setattr__(self, "_place", (bound.rank, bound.local_rows))


class DistAttnRuntimeMgr:
    """The methods of the original's manager over one bound plan; `plan` is the plan itself."""

    def __init__(self, bound: BoundPlan) -> None:
        self.bound = bound

    @property
    def plan(self):
        return self.bound.plan

    def dispatch_qo(self, q_or_o: torch.Tensor, pad_value: float = 0.0) -> torch.Tensor:
        return self.bound.dispatch(q_or_o, pad_value)

    dispatch_kv = dispatch_qo

    def undispatch_qo(self, q_or_o: torch.Tensor, is_partial_grad: bool = False) -> torch.Tensor:
        return self.bound.undispatch(q_or_o, is_partial_grad)

    undispatch_kv = undispatch_qo

    def roll(self, x: torch.Tensor, shift: int, dim: int) -> torch.Tensor:
        return self.bound.roll(x, shift, dim)

    roll_simple = roll

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
        return self.bound.calc_attn(q, k, v, sink, softmax_scale, softcap, return_max_logits)

    def get_position_ids(self, attn_role: AttnRole = AttnRole.QUERY) -> torch.Tensor:
        """int64 [local rows]; queries, keys and values are placed alike."""
        return self.bound.position_ids

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DistAttnRuntimeMgr):
            return NotImplemented
        same_group = self.bound.cp_group is other.bound.cp_group
        return same_group and self.bound.plan == other.bound.plan

    __hash__ = None


class DistAttnRuntimeDict(OrderedDict):
    """Managers by key; the key that was asked for longest ago leaves when max_size is passed."""

    def __init__(self, max_size: int, *args: Any, **kwargs: Any) -> None:
        self.max_size = max_size
        self._recent: DistAttnRuntimeKey | None = None
        super().__init__(*args, **kwargs)

    def __setitem__(self, key: DistAttnRuntimeKey, value: DistAttnRuntimeMgr) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        self._recent = key
        while len(self) > self.max_size:
            self.popitem(last=False)

    def get(self, key: DistAttnRuntimeKey, default: Any = None) -> Any:
        if key not in self:
            return default
        self.move_to_end(key)
        return self[key]

    def touch(self, key: DistAttnRuntimeKey) -> None:
        """Makes a stored key the most recent one."""
        self.move_to_end(key)
        self._recent = key

    def get_most_recent_key(self) -> DistAttnRuntimeKey | None:
        """The key made or asked for by a key function last."""
        return self._recent if self._recent in self else next(reversed(self), None)


def check_flag_comb() -> None:
    """Raises for environment variables that exclude each other or ask for what is not available."""
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
