# SPDX-License-Identifier: Apache-2.0
"""Plans as values: where rows live, what travels, in which order; and plans on the ranks of a
process group. No globals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo

from magi_attention._group_holders import holds_groups
from magi_attention._native.handles import MaskHandle, PlacementHandle, PlanHandle
from magi_attention._native.vtable import Communicator
from magi_attention.backends._table import refuse_margin
from magi_attention.comm.group import make_communicator, rank_of, size_of
from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind, trying
from magi_attention.common._runs import Run
from magi_attention.common._slices import MaskTypes, check_equally_many, to_mask_types
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.plan_report import PlanReport, find_report
from magi_attention.common.ranges import AttnRanges
from magi_attention.config import DistAttnConfig
from magi_attention.config.library import MAX_NODE, plan_sizes, to_mask, to_plan
from magi_attention.config.words import chosen_config
from magi_attention.env import apply_log_level, comm, general
from magi_attention.functional import SparseForwardMeta
from magi_attention.functional._rank_attention import (
    LocalShape,
    Margins,
    RankAttention,
    layout_of,
    runner_of,
)
from magi_attention.functional.dist_attn import attend_by
from magi_attention.functional.kernel_backend import chosen_backend
from magi_attention.functional.latent_attn import LatentAttention, attend_to_latents
from magi_attention.functional.latent_price import LatentPrice, price_latents
from magi_attention.functional.needed_rows import plan_of_keys
from magi_attention.functional.rows import dispatch_padded, roll_p2p, undispatch_func
from magi_attention.functional.sparse_dist_attn import NeededKeys, attend_to_chosen_keys
from magi_attention.masks import Mask
from magi_attention.rows import Rows, num_valid_rows
from magi_attention.training_memory import ModelShape, Training, TrainingMemory, memory_of_plan

_MAX_SMS = 1 << 20  # more than any GPU has
_PICTURES = ("mask", "placement", "traffic", "timeline", "steps")


class Plan:
    """A plan of how `cp_size` ranks share attention under one mask: which rank holds which rows,
    and what travels when. Made without communication, by from_mask or from_ranges; equal arguments
    give equal plans, on every rank and in every run. Immutable; `print(plan)` gives a page of
    figures.
    """

    def __init__(self, handle: PlanHandle) -> None:
        self._handle = handle
        self._runs: list[list[Run]] | None = None

    @staticmethod
    def from_ranges(
        q_ranges: AttnRanges,
        k_ranges: AttnRanges,
        attn_mask_type: MaskTypes,
        total_seqlen: int,
        *,
        cp_size: int,
        num_heads_q: int,
        num_heads_kv: int,
        head_dim: int,
        head_dim_v: int | None = None,
        placement: str | None = None,
        overlap: int | None = None,
        work: str | None = None,
        config: DistAttnConfig | None = None,
        on: Plan | None = None,
        devices_per_node: int = 0,
    ) -> Plan:
        """A plan of self-attention over total_seqlen rows, in which the queries of q_ranges[i] see
        the keys of k_ranges[i].

        - attn_mask_type: "full", "causal", "inv_causal", "bi_causal" or AttnMaskType; one for all
          ranges, or one for each.
        - cp_size: ranks. num_heads_q, a multiple of num_heads_kv; head_dim: elements of a head,
          head_dim_v: of one of v, None: as many.
        - placement: how rows are placed: "auto" (the default), "thorough" (a longer search),
          "affinity", "zigzag", "min_heap", or "contiguous", which keeps one run of rows on each
          rank. overlap: stages of remote keys; 0: one attention call for all keys; None: chosen by
          the cost model. work: what travels: "keys", "queries" too, "heads", or "auto", the fastest
          as predicted; None: as in DistAttnConfig.
        - config: these options as MagiAttention's configuration, and others, in their place.
        - on: a plan whose placement of rows this one takes over.
        - devices_per_node: ranks that share a node, one node after the other; 0: all of them. A row
          that several ranks of another node need crosses to it once (docs/nodes.md).

        ValueError for ranges outside the sequence, for numbers of heads that do not divide and for
        sizes out of bounds; TypeError for arguments of other types.
        """
        for name, ranges in (("q_ranges", q_ranges), ("k_ranges", k_ranges)):
            with trying(f"AttnRanges.from_ranges({name})", "list"):
                check_kind(name, ranges, AttnRanges, "AttnRanges")
        check_int("total_seqlen", total_seqlen, 1, MAX_ROWS)
        sizes = plan_sizes(cp_size, num_heads_q, num_heads_kv, head_dim, head_dim_v)
        check_equally_many(q_ranges, k_ranges)
        types = to_mask_types(attn_mask_type, len(q_ranges))
        mask = to_mask(q_ranges, k_ranges, types, total_seqlen)
        chosen = chosen_config(config, placement, overlap, work)
        return _make(mask, sizes, chosen, on, devices_per_node)

    @staticmethod
    def from_mask(
        mask: Mask,
        *,
        cp_size: int,
        num_heads_q: int,
        num_heads_kv: int,
        head_dim: int,
        head_dim_v: int | None = None,
        placement: str | None = None,
        overlap: int | None = None,
        work: str | None = None,
        config: DistAttnConfig | None = None,
        on: Plan | None = None,
        devices_per_node: int = 0,
    ) -> Plan:
        """Does what from_ranges does, for a mask of magi_attention.masks with as many keys as
        queries, and no fewer rows than ranks.
        """
        with trying("masks.from_cu_seqlens(bounds), or Plan.from_ranges"):
            check_kind("mask", mask, Mask, "a Mask of magi_attention.masks")
        if mask.rows_q != mask.rows_k or mask.rows_q == 0:
            raise ValueError(
                f"mask has {mask.rows_q} queries and {mask.rows_k} keys; allowed: equal, not 0; "
                "try: attention(q, k, v, mask) on one device"
            )
        sizes = plan_sizes(cp_size, num_heads_q, num_heads_kv, head_dim, head_dim_v)
        if mask.rows_q < sizes[0] <= MAX_NODE:
            raise ValueError(
                f"cp_size is {cp_size}; allowed: 1 to {mask.rows_q}, the rows of the sequence, as "
                "each rank has one at least; try: padding, or fewer ranks"
            )
        chosen = chosen_config(config, placement, overlap, work)
        return _make(mask.handle, sizes, chosen, on, devices_per_node)

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan that to_json wrote; ValueError for other text and for unknown keys."""
        check_kind("text", text, str, "a str")
        with trying("the text of plan.to_json()"):
            return Plan(PlanHandle.from_json(text))

    def to_json(self) -> str:
        """The plan as JSON text, for from_json. Equal plans give equal text."""
        return self._handle.to_json()

    @property
    def handle(self) -> PlanHandle:
        """The library's plan."""
        return self._handle

    @cached_property
    def placement(self) -> PlacementHandle:
        """The library's placement: which rank holds which chunk."""
        return self._handle.placement()

    @cached_property
    def total_seqlen(self) -> int:
        """Rows of the sequence, without padding."""
        return self._handle.mask().rows()[0]

    @property
    def padded_seqlen(self) -> int:
        """Rows of all ranks together, padding included."""
        return self.placement.info().num_rows

    @property
    def pad_size(self) -> int:
        """Rows that are added to the sequence."""
        return self.padded_seqlen - self.total_seqlen

    @property
    def chunk_size(self) -> int:
        """Rows that are placed together."""
        return self.placement.info().chunk_size

    @property
    def cp_size(self) -> int:
        """Number of ranks."""
        return self.placement.info().num_ranks

    @property
    def chunk_ranks(self) -> list[int]:
        """The rank of every chunk."""
        info = self.placement.info()
        return info.chunk_rank[: info.num_chunks]

    @cached_property
    def report(self) -> PlanReport:
        """Figures: areas, rows, bytes, predicted seconds."""
        return find_report(self._handle)

    @property
    def reach(self) -> tuple[int, int]:
        """Returns how many rows the farthest keys lie before and after a query that sees them."""
        return self._handle.mask().reach()

    def rows_of(self, rank: int) -> int:
        """Local rows of a rank, padding included."""
        return self.placement.rows_of(rank)

    def ranges_of(self, rank: int) -> AttnRanges:
        """Rows of the sequence that a rank holds, merged, in the order of its local rows."""
        info = self.placement.info()
        check_int("rank", rank, 0, info.num_ranks - 1)
        chunk, last = info.chunk_size, self.total_seqlen
        own = [i * chunk for i in range(info.num_chunks) if info.chunk_rank[i] == rank]
        return AttnRanges.from_ranges(
            [(row, min(row + chunk, last)) for row in own if row < last]
        ).merge()

    def runs(self, rank: int) -> list[Run]:
        """The runs of rows of a rank, as recurrent layers take them, in the order of its rows."""
        check_int("rank", rank, 0, self.cp_size - 1)
        if self._runs is None:
            self._runs = [[] for _ in range(self.cp_size)]
            for owner, *run in self._handle.runs():
                self._runs[owner].append(Run(*run))
        return self._runs[rank]

    def position_ids(self, rank: int) -> list[int]:
        """Row of the sequence of every local row; padding counts as the last row."""
        return self.placement.position_ids(rank, self.total_seqlen).tolist()

    def memory(
        self, model: ModelShape, training: Training | None = None, transport: str = "nvlink"
    ) -> tuple[TrainingMemory, ...]:
        """Returns, by rank, what a training of the model on this plan's rows takes of a GPU, before
        anything is allocated (docs/training.md). The plan is one of the model's heads, or of
        a group of them. transport: "nvlink", or "nccl" for all others.

        ValueError for a model of other heads, TypeError for arguments of other types.
        """
        chosen = Training() if training is None else training
        return memory_of_plan(self, model, chosen, transport)

    @cached_property
    def keys(self) -> PlanHandle:
        """The library's plan of the same mask and placement that moves keys in one exchange."""
        return plan_of_keys(self._handle)

    def price_latents(self, latent_dim: int, rope_dim: int) -> LatentPrice:
        """Returns the bytes and seconds of latent attention (MLA) under this plan, of its heads and
        dims, where latents of so many elements and the rotated parts of keys travel, and where keys
        and values do: what calc_latent_attn chooses by. `print` shows both.
        """
        check_int("latent_dim", latent_dim, 1)
        check_int("rope_dim", rope_dim, 0, self.report.head_dim)
        return price_latents(self._handle, self.keys, self.report, latent_dim, rope_dim)

    def defects(self) -> str:
        """Returns what an independent check finds wrong, one line each; empty for a sound plan."""
        return self._handle.defects()

    def show(self, picture: str = "mask", path: str | None = None, title: str = "") -> str:
        """SVG text of "mask" (coloured by rank), "placement", "traffic", "timeline" or "steps"
        (what waits for what); written to `path` as well where one is given.
        """
        if picture not in _PICTURES:
            raise ValueError(f"picture is {picture!r}; allowed: {', '.join(_PICTURES)}")
        svg = self._handle.draw(_PICTURES.index(picture), title)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(svg)
        return svg

    def bind(
        self,
        cp_group: dist.ProcessGroup | None = None,
        exchange_sms: int | None = None,
        backend: str | None = None,
        transport: str | None = None,
        rounded_partials: bool | None = None,
    ) -> BoundPlan:
        """This plan on the ranks of a process group; None: on this process alone. Options are the
        same on all ranks; None: as the environment asks, else the library's choice. ValueError for
        a group of another size than cp_size.
        - exchange_sms: multiprocessors of a GPU that attention leaves to exchanges under way;
          ValueError above 0 with kernels of another package, which leave none.
        - backend: one of docs/backends.md, such as "fa4", RuntimeError where it does not serve this
          machine, or one you registered, ValueError for other names; "ffa": the library's own.
        - transport: "auto", "nvlink", "nccl" or "process_group" (docs/python.md).
        - rounded_partials: whether partial gradients of keys travel in the type of k, each rounded
          once, instead of float32.
        """
        return BoundPlan(self, cp_group, None, exchange_sms, backend, transport, rounded_partials)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self._handle.equals(other._handle)

    def __hash__(self) -> int:
        return hash(self.report.digest)

    def __str__(self) -> str:
        return self._handle.describe()

    def __repr__(self) -> str:
        return (
            f"Plan(total_seqlen={self.total_seqlen}, cp_size={self.cp_size}, "
            f"chunk_size={self.chunk_size}, digest={self.report.digest:016x})"
        )

    def __reduce__(self):
        return (Plan.from_json, (self.to_json(),))


class BoundPlan:
    """A plan on the ranks of a process group (Plan.bind): runs it as one of them. dispatch makes no
    communication; undispatch, roll and calc_attn are collective, in the same order on all ranks,
    and raise CommError where communication fails. The sequence is axis 0 unless said otherwise.

    On a GPU, memory of a call over several ranks is that of torch's caching allocator. A copy is
    the bound plan itself; pickling raises TypeError.
    """

    def __init__(
        self,
        plan: Plan,
        cp_group: dist.ProcessGroup | None = None,
        communicator: Communicator | None = None,
        exchange_sms: int | None = None,
        backend: str | None = None,
        transport: str | None = None,
        rounded_partials: bool | None = None,
    ) -> None:
        self.rank = rank_of(cp_group)
        if size_of(cp_group) != plan.cp_size:
            raise ValueError(
                f"cp_group has {size_of(cp_group)} ranks; allowed: {plan.cp_size}, the plan's; "
                "try: torch.distributed.init_process_group() before, and bind(dist.group.WORLD)"
            )
        if exchange_sms is not None:
            check_int("exchange_sms", exchange_sms, 0, _MAX_SMS)
        margins = comm.exchange_sms() if exchange_sms is None else (exchange_sms, exchange_sms)
        apply_log_level()
        backend = chosen_backend(backend)
        if exchange_sms:
            refuse_margin("exchange_sms", exchange_sms, backend)
        if rounded_partials is None:
            rounded_partials = comm.rounds_partial_gradients()
        check_kind("rounded_partials", rounded_partials, bool, "a bool, or None")
        self._rounds_partials = rounded_partials
        self.plan, self.cp_group = plan, cp_group
        holds_groups(self, "cp_group")
        self.communicator = communicator or make_communicator(cp_group, transport)
        self.total_seqlen = plan.total_seqlen
        self.reach = plan.reach
        num_valid = num_valid_rows(plan.placement, plan.total_seqlen, self.rank)
        self.rows = Rows(
            plan.placement, self.total_seqlen, num_valid, self.communicator, cp_group,
            plan.report.digest,
        )  # fmt: skip
        self.local_rows = self.rows.count
        unpadded = None
        if plan.cp_size == 1 and num_valid < self.local_rows:
            unpadded = self._attention_of(num_valid, num_valid, margins, backend)
        rows = self.local_rows, num_valid
        self.attention = self._attention_of(*rows, margins, backend, unpadded)

    def _attention_of(
        self,
        rows: int,
        num_valid: int,
        exchange_sms: Margins,
        backend: str | None,
        unpadded: RankAttention | None = None,
    ) -> RankAttention:
        """Attention of this rank's rows, of which num_valid come before the padding."""
        report = self.plan.report
        local_shape = LocalShape(
            self.rank, rows, num_valid, report.num_heads_q, report.num_heads_kv, report.head_dim,
            report.head_dim_v, backend,
        )  # fmt: skip
        runner = partial(
            runner_of, self.plan.handle, rows, self.communicator, exchange_sms, backend,
            self._rounds_partials,
        )  # fmt: skip
        named = {
            "plan": f"{report.digest:016x}",
            "transport": self.communicator.backend,
            "MAGI_ATTENTION_PRECISION": str(general.precision()),
            "backend": backend or "the library's own",
            "rounded_partials": str(self._rounds_partials),
        }
        return RankAttention(local_shape, runner, self.cp_group, unpadded, named)

    def calc_attn(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
        return_max_logits: bool = False,
        sink_layout: str | None = None,
    ) -> tuple[torch.Tensor, AttnForwardMeta]:
        """Attention of this rank's queries q [rows, heads_q, dim] to the keys of all ranks, of
        which k, v [rows, heads_kv, dim] are this rank's. Options and result are those of
        flex_flash_attn_func; max_logits are over all ranks. sink_layout None: "ssh" for a sink of
        three axes, else "sh". Tensors may lack the padding, which ends a rank's rows: the result
        then lacks it too. ValueError or TypeError names an argument that does not fit the plan.
        """
        if sink_layout is None:
            sink_layout = layout_of(sink)
        options = (sink, sink_layout, softmax_scale, softcap, return_max_logits)
        return attend_by(self.attention, (q, k, v), options)

    @cached_property
    def needed_keys(self) -> NeededKeys:
        """The keys that come to this rank in gather_needed and each calc_sparse_attn."""
        return NeededKeys(self.plan.keys, self.rank, self.rows)

    def gather_needed(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's rows x [rows, ...], with or without their padding, and after them the rows
        of other ranks that its queries may see under the plan's mask, in the order of the sequence:
        needed_position_ids tells which. Each comes once, straight from its owner. Gradients of
        these rows are added at their owners in the order of the ranks, in float32 or wider.
        Collective, where a rank needs any.
        """
        return self.needed_keys.gather_checked(x, self.plan.report.digest)

    @cached_property
    def needed_position_ids(self) -> torch.Tensor:
        """int64, in host memory: the row of the sequence of every row of gather_needed of x with
        its padding, which counts as the last row.
        """
        return self.needed_keys.ids(self.local_rows)

    def calc_sparse_attn(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_sparse_indices: torch.Tensor | Callable[[], torch.Tensor] | None = None,
        sparse_k_block_size: int = 1,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
        *,
        block_mask: torch.Tensor | Callable[[], torch.Tensor] | None = None,
        q_block_size: int = 1,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, SparseForwardMeta]:
        """Attention of this rank's rows q, k, v [rows, heads, dim] to keys that are chosen anew in
        every call, within the plan's mask. Collective. On GPUs the host waits only in the first
        call of a shape. Give one of these, or a function that returns it, called while keys come:
        - index_sparse_indices: int32 [rows, heads_kv, n], rows of the sequence, or blocks of
          sparse_k_block_size of them, in any order; -1: none; an entry that occurs n times counts n
          times. With q_block_size [q_blocks, heads_kv, n]: a list for each block of own rows
        - block_mask: bool [heads_kv or 1, q_blocks of this rank's rows, k_blocks of the sequence]

        is_causal, for blocks of queries: no query sees a key after itself. q_block_size (with
        is_causal also sparse_k_block_size) divides the plan's chunk_size. The keys that this rank's
        queries may see under the plan's mask come. Any of these may be named, of blocks whole ones;
        results of a query that names others are NaN. Entries outside the sequence count as none.
        meta.error_word counts both kinds; MAGI_ATTENTION_SANITY_CHECK=1 makes them ValueError.

        Returns out and a meta with lse; both pass gradients on. ValueError for other shapes
        than the plan's, with or without padding (latents, k [rows, 1, dim] with v its view
        k[..., :dim_v], have any dims); NotImplementedError for another backend.
        """
        sizes = q_block_size, sparse_k_block_size
        given = (index_sparse_indices, block_mask, sizes, is_causal), (softmax_scale, softcap)
        return attend_to_chosen_keys(self.needed_keys, self.attention, (q, k, v), *given)

    @cached_property
    def latents(self) -> LatentAttention:
        """Attention of this rank's rows to latents, for calc_latent_attn."""
        return LatentAttention(self.needed_keys, self.attention, self.plan.price_latents)

    @_disable_dynamo  # as torch.compiler.disable, which would load the compiler now
    def calc_latent_attn(
        self,
        q: torch.Tensor,
        latent: torch.Tensor,
        k_rope: torch.Tensor,
        up_projection: torch.Tensor,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
        *,
        mode: str = "auto",
        heads_at_once: int | None = None,
    ) -> tuple[torch.Tensor, AttnForwardMeta]:
        """Attention to keys and values that are projections of latent rows (MLA). All rows are this
        rank's, with or without their padding. Collective.

        - q [rows, heads_q, dim]; latent [rows, latent dim], as the projection takes it; k_rope
          [rows, rope dim], rotated: the last elements of each head's key. up_projection [heads_kv *
          (dim - rope dim + dim of v), latent dim]: a weight as torch.nn.Linear has it, of each head
          those of its key before those of its value. The sum of its gradients over the ranks is
          that of the whole; each mode splits the sum in its own way.
        - mode: "latent": latent and k_rope travel, to the ranks that need them, once, and are
          projected there, in forward and backward; their gradients are added at their owners, in
          the order of the ranks. "expanded": keys and values travel, as in calc_attn. Both give the
          same but for roundings. "auto": what plan.price_latents finds faster.
        - heads_at_once: kv heads whose keys and values are there at a time; None: those of 1 GiB.

        Returns out [rows, heads_q, dim of v] and a meta with lse. ValueError or TypeError names an
        argument that does not fit the plan, whose head_dim is that of q and whose head_dim_v is not
        below that of v.
        """
        given = (q, latent, k_rope, up_projection), (softmax_scale, softcap), mode, heads_at_once
        return attend_to_latents(self.latents, self.calc_attn, *given)

    def dispatch(self, x: torch.Tensor, pad_value: float = 0.0, seq_dim: int = 0) -> torch.Tensor:
        """x, the same on every rank, with total_seqlen rows along seq_dim -> this rank's rows."""
        return dispatch_padded(x, self, pad_value, seq_dim)

    def undispatch(
        self, x: torch.Tensor, is_partial_grad: bool = False, seq_dim: int = 0
    ) -> torch.Tensor:
        """This rank's rows, with or without their padding -> total_seqlen rows on every rank.
        is_partial_grad: gradients of ranks are parts of a sum, else every rank holds the whole.
        """
        return undispatch_func(x, self, self.cp_group, seq_dim, is_partial_grad)

    def roll(self, x: torch.Tensor, shift: int, dim: int = 0) -> torch.Tensor:
        """torch.roll along the sequence, axis `dim`, of which every rank holds its rows."""
        return roll_p2p(x, shift, self, self.cp_group, dim)

    @property
    def position_ids(self) -> torch.Tensor:
        """int64 [local rows]: row of the sequence; padding counts as the last row. In host memory,
        or on the current GPU for a group that moves nothing else (nccl).
        """
        return self.rows.position_ids()

    def position_ids_on(self, device: torch.device) -> torch.Tensor:
        """position_ids on a device."""
        return self.rows.position_ids_on(device)

    def __copy__(self) -> BoundPlan:
        return self

    def __deepcopy__(self, memo: dict) -> BoundPlan:
        return self

    def __reduce__(self):
        raise TypeError(
            "a bound plan cannot be pickled, as it runs on a process group of this process; "
            "allowed: its plan, and Plan.bind(group) of that where it arrives"
        )

    def __repr__(self) -> str:
        return (
            f"BoundPlan(rank={self.rank}, local_rows={self.local_rows}, "
            f"transport={self.communicator.backend!r}, plan={self.plan!r})"
        )


def _make(
    mask: MaskHandle,
    sizes: tuple[int, ...],
    config: DistAttnConfig,
    on: Plan | None,
    devices_per_node: int,
) -> Plan:
    if on is not None:
        check_kind("on", on, Plan, "a Plan, or None")
        if on.cp_size != sizes[0]:
            raise ValueError(f"on.cp_size is {on.cp_size}; allowed: {sizes[0]}, cp_size")
        in_order = sorted(on.chunk_ranks)
        if config.dispatch_config.layout == "contiguous" and on.chunk_ranks != in_order:
            raise ValueError(
                "on is a plan whose ranks hold several runs of rows while layout is 'contiguous'; "
                "allowed: one of that layout, or layout 'permuted', which keeps rows where they are"
            )
    apply_log_level()
    placement = None if on is None else on.placement
    return Plan(to_plan(mask, sizes, config, placement, devices_per_node))
