# SPDX-License-Identifier: Apache-2.0
"""A plan on the ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from magi_attention._native import structs
from magi_attention._native.attention import (
    DTYPE_CODES,
    Call,
    CallCache,
    Options,
    Runner,
    TensorStruct,
    calls_of,
    current_stream,
    device_index,
    dist_backward,
    dist_forward,
    signature,
)
from magi_attention._native.library import Handle, check, lib, made
from magi_attention._native.vtable import Communicator
from magi_attention.comm.process_group import ProcessGroupTransport, rank_in
from magi_attention.common._arguments import check_int
from magi_attention.common.enum import MagiAttentionPrecision
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.env import comm, general
from magi_attention.functional._checks import check_params, check_qkv, check_sink
from magi_attention.functional.dispatch import (
    _DispatchFunc,
    _UndispatchFunc,
    _UndispatchPartialGradFunc,
)
from magi_attention.functional.dist_attn import DistAttention, register
from magi_attention.functional.roll import _RollP2P
from magi_attention.functional._eager import is_eager, run
from magi_attention.functional._masks import calls_under

if TYPE_CHECKING:
    from magi_attention.plan import Plan

_PARTIAL_GRADIENT = 1
_CHECKED_KEPT = 256
_INT64 = 1 << 63


class _AttentionHandle(Handle):
    destroy = "magi_attention_destroy"
    __slots__ = ("_communicator",)

    def __init__(self, plan: "Plan", communicator: Communicator) -> None:
        super().__init__(made(lib.magi_attention_create, plan.handle.address, communicator.address))
        self._communicator = communicator


def rank_of(cp_group: dist.ProcessGroup | None) -> int:
    """This process's rank in the group. ValueError unless it has one, TypeError for what is no
    group, RuntimeError for one that was destroyed.
    """
    return 0 if cp_group is None else rank_in("cp_group", cp_group)


def size_of(cp_group: dist.ProcessGroup | None) -> int:
    rank_of(cp_group)
    return 1 if cp_group is None else dist.get_world_size(cp_group)


def make_communicator(cp_group: dist.ProcessGroup | None) -> Communicator:
    if cp_group is None or dist.get_world_size(cp_group) == 1:
        return Communicator.alone()
    return Communicator.over(ProcessGroupTransport(cp_group))


class BoundPlan:
    """Runs a plan as one rank. dispatch makes no communication; undispatch, roll and calc_attn are
    collective, in the same order on all ranks. Sequences are axis 0 unless said otherwise.
    """

    def __init__(
        self,
        plan: "Plan",
        cp_group: dist.ProcessGroup | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        self.rank = rank_of(cp_group)
        if size_of(cp_group) != plan.cp_size:
            raise ValueError(
                f"cp_group has {size_of(cp_group)} ranks; allowed: {plan.cp_size}, the plan's"
            )
        self.plan = plan
        self.cp_group = cp_group
        self.communicator = communicator or make_communicator(cp_group)
        self.number = register(self)
        self.local_rows = plan.rows_of(self.rank)
        self.total_seqlen = plan.total_seqlen
        self.reach = plan.reach
        self.precision = general.precision()
        self.is_fast_backward = not general.is_deterministic_mode_enable()
        ids = plan.placement.position_ids(self.rank, self.total_seqlen)
        self._ids_on = {torch.device("cpu"): torch.tensor(ids, dtype=torch.int64, device="cpu")}
        self._num_valid = plan.ranges_of(self.rank).total_seqlen  # these come before the padding
        report = plan.report
        # What a call's tensors must fit: rank, its rows, heads of q and of k, head dims of q and v.
        self.place = (
            self.rank, self.local_rows, report.num_heads_q, report.num_heads_kv, report.head_dim,
            report.head_dim_v,
        )  # fmt: skip
        self._calls: CallCache | None = None
        # Calls whose arguments were checked, by all that the checks look at.
        self._checked: dict[tuple, Call] = {}

    @property
    def calls(self) -> CallCache:
        """Made at the first call, which compares the ranks' plans."""
        if self._calls is None:
            self._calls = self._make_calls()
        return self._calls

    def _make_calls(self) -> CallCache:
        if self.plan.cp_size == 1:  # rows are in the order of the sequence
            return calls_under(self.plan.handle.mask().resized(self.local_rows, self.local_rows))
        handle = _AttentionHandle(self.plan, self.communicator)
        return calls_of(Runner(dist_forward, dist_backward, handle.address, handle))

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
        """As flex_flash_attn_func on this rank's rows; max_logits are those of all ranks.
        sink_layout None: "ssh" for a sink of three axes, else "sh".
        """
        if sink_layout is None:
            sink_layout = layout_of(sink)
        options = (sink, sink_layout, softmax_scale, softcap, return_max_logits)
        if is_eager(q, k, v):
            return self.attend_now(q, k, v, options)
        return attend(self.number, self.place, self.precision, (q, k, v), options)

    def attend_now(self, q, k, v, options: tuple) -> tuple[torch.Tensor, AttnForwardMeta]:
        """calc_attn without an operator; options: sink, its layout, softmax_scale, softcap,
        return_max_logits.
        """
        sink, sink_layout, softmax_scale, softcap, return_max_logits = options
        if sink is None and self.precision is None:
            kind = (signature(q, k, v), options)
            call = self._checked.get(kind)
            if call is not None:
                return run(q, k, v, None, call, None)
        given_dtype = q.dtype if isinstance(q, torch.Tensor) else None
        q, k, v = check_local(q, k, v, self.place, self.precision)
        scale = check_params(softmax_scale, softcap)
        sink, layout = check_sink(sink, sink_layout, q)
        params = Options(
            scale, softcap, layout, return_max_logits, is_fast_backward=self.is_fast_backward
        )
        call = self.calls.find(q, k, v, sink, params)
        if sink is None and self.precision is None:
            if len(self._checked) >= _CHECKED_KEPT:
                self._checked.clear()
            self._checked[kind] = call
        out, meta = run(q, k, v, sink, call, None if layout else self)
        return out.to(given_dtype), meta

    def dispatch(self, x: torch.Tensor, pad_value: float = 0.0, seq_dim: int = 0) -> torch.Tensor:
        """x, the same on every rank, with total_seqlen rows along seq_dim -> this rank's rows."""
        self._check_rows("x", x, self.total_seqlen, seq_dim)
        return _DispatchFunc.apply(x, self.cp_group, self, seq_dim, pad_value)

    def undispatch(
        self, x: torch.Tensor, is_partial_grad: bool = False, seq_dim: int = 0
    ) -> torch.Tensor:
        """This rank's rows -> total_seqlen rows on every rank. is_partial_grad: gradients of
        ranks are parts of a sum, else every rank holds the whole.
        """
        self._check_rows("x", x, self.local_rows, seq_dim)
        function = _UndispatchPartialGradFunc if is_partial_grad else _UndispatchFunc
        return function.apply(x, self.cp_group, self, seq_dim)

    def roll(self, x: torch.Tensor, shift: int, dim: int = 0) -> torch.Tensor:
        """torch.roll along the sequence, axis `dim`, of which every rank holds its rows."""
        check_int("dim", dim, -_INT64)
        self._check_rows("x", x, self.local_rows, dim)
        shift = check_int("shift", shift, -_INT64) % self.total_seqlen
        return _RollP2P.apply(x, shift, self, self.cp_group, dim)

    @property
    def position_ids(self) -> torch.Tensor:
        """int64 [local rows]: row of the sequence; padding counts as the last row. In host memory,
        or on the current GPU for a group that moves nothing else (nccl).
        """
        return self.position_ids_on(self._own_device())

    def position_ids_on(self, device: torch.device) -> torch.Tensor:
        """position_ids on a device; copied there once."""
        ids = self._ids_on.get(device)
        if ids is None:
            ids = self._ids_on[device] = self._ids_on[torch.device("cpu")].to(device)
        return ids

    def _own_device(self) -> torch.device:
        if self.cp_group is not None and dist.get_backend(self.cp_group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def _check_rows(self, name: str, x: torch.Tensor, rows: int, seq_dim: int) -> None:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; allowed: a torch.Tensor")
        if x.layout is not torch.strided:
            raise ValueError(f"{name} has layout {x.layout}; allowed: torch.strided")
        if not -x.dim() <= seq_dim < x.dim():
            raise ValueError(f"{name} has {x.dim()} axes; allowed: those with axis {seq_dim}")
        if x.shape[seq_dim] != rows:
            place = "" if seq_dim == 0 else f" in axis {seq_dim}"
            wanted = f"[{rows}, ...]" if seq_dim == 0 else str(rows)
            raise ValueError(f"{name} has shape {list(x.shape)}; allowed: {wanted}{place}")

    def select_rows(self, x: torch.Tensor, pad_value: float) -> torch.Tensor:
        """Own rows of a global tensor; padding rows hold pad_value."""
        local = x.index_select(0, self.position_ids_on(x.device))
        if self._num_valid < self.local_rows:
            local[self._num_valid :] = pad_value
        return local

    def gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Everyone's rows in the order of the sequence, without padding."""
        if self.plan.cp_size == 1:  # rows are in the order of the sequence
            return x[: self.total_seqlen].clone()
        local = _as_moved(x)
        whole = local.new_empty((self.total_seqlen, local.shape[1]))
        placement, group = self.plan.placement.address, self.communicator.address
        source, target = TensorStruct(local), TensorStruct(whole)
        stream = current_stream(device_index(local))
        check(lib.magi_undispatch(source.address, placement, group, target.address, stream))
        return _as_given(whole, x, self.total_seqlen)

    def reduce_rows(self, grad: torch.Tensor) -> torch.Tensor:
        """Own rows of the sum of everyone's global tensors; padding rows are 0."""
        if self.plan.cp_size == 1:
            return self.select_rows(grad, 0.0)
        if grad.is_complex():
            return torch.view_as_complex(self.reduce_rows(torch.view_as_real(grad.resolve_conj())))
        whole = _as_rows(grad)
        local = whole.new_empty((self.local_rows, whole.shape[1]))
        source, target = TensorStruct(whole), TensorStruct(local)
        args = structs.UndispatchGradient(
            global_gradient=source.address, local_gradient=target.address, mode=_PARTIAL_GRADIENT
        )
        placement, group = self.plan.placement.address, self.communicator.address
        stream = current_stream(device_index(whole))
        check(lib.magi_undispatch_backward(args.address, placement, group, stream))
        return local.view(self.local_rows, *grad.shape[1:])

    def roll_rows(self, x: torch.Tensor, shift: int) -> torch.Tensor:
        """Own rows of torch.roll of the sequence by shift, along axis 0; padding rows stay."""
        if self.plan.cp_size == 1:
            # By copies, which know every type; torch.roll does not on a GPU.
            rolled, end = torch.empty_like(x), self.total_seqlen
            first = shift % end
            rolled[:first] = x[end - first : end]
            rolled[first:end] = x[: end - first]
            rolled[end:] = x[end:]
            return rolled
        local = _as_moved(x)
        rolled = torch.empty_like(local)
        source, target = TensorStruct(local), TensorStruct(rolled)
        args = structs.RollArgs(
            local=source.address, out=target.address, num_valid_rows=self.total_seqlen, shift=shift
        )
        placement, group = self.plan.placement.address, self.communicator.address
        stream = current_stream(device_index(local))
        check(lib.magi_roll(args.address, placement, group, stream))
        return _as_given(rolled, x, self.local_rows)

    def reduce_dsink(self, dsink: torch.Tensor) -> None:
        """Sums or averages a shared sink's gradient over ranks where the environment asks."""
        operation = comm.dsink_all_reduce_op()
        if operation == "none" or self.plan.cp_size == 1:
            return
        dist.all_reduce(dsink, group=self.cp_group)
        if operation == "avg":
            dsink /= self.plan.cp_size


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """[rows, elements], contiguous."""
    if x.device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"x is on {x.device}; allowed: cpu, cuda")
    width = x[0].numel() if x.shape[0] else 1
    return x.contiguous().view(x.shape[0], width)


def _as_moved(x: torch.Tensor) -> torch.Tensor:
    """_as_rows in a type that the library moves: of others the bytes, filled up to int64, so that
    every value survives.
    """
    flat = _as_rows(x.resolve_conj())
    if flat.dtype in DTYPE_CODES:
        return flat
    row_bytes = flat.view(torch.uint8)
    return torch.nn.functional.pad(row_bytes, (0, -row_bytes.shape[1] % 8)).view(torch.int64)


def _as_given(moved: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    """`rows` rows of _as_moved in the type and shape of those of x."""
    shape = (rows, *x.shape[1:])
    if moved.dtype == x.dtype:
        return moved.view(shape)
    num_bytes = x.shape[1:].numel() * x.itemsize
    return moved.view(torch.uint8)[:, :num_bytes].contiguous().view(x.dtype).view(shape)


def layout_of(sink: torch.Tensor | None) -> str:
    """ "sh" for a sink of all rows, "ssh" for one per row."""
    return "ssh" if getattr(sink, "ndim", 2) == 3 else "sh"


def check_local(q, k, v, place: tuple[int, ...], precision: MagiAttentionPrecision | None):
    """q, k, v of one rank, cast where the environment asks; place: BoundPlan.place."""
    if precision is not None:
        dtype = precision.to_torch_dtype()
        q, k, v = (t.to(dtype) if isinstance(t, torch.Tensor) else t for t in (q, k, v))
    check_qkv(q, k, v)
    for name, tensor in (("q", q), ("k", k)):
        if tensor.shape[0] != place[1]:
            raise ValueError(
                f"{name} has {tensor.shape[0]} rows; allowed: {place[1]}, "
                f"the plan's rows of rank {place[0]}"
            )
    _, rows, heads_q, heads_kv, dim, dim_v = place
    wanted = ((rows, heads_q, dim), (rows, heads_kv, dim), (rows, heads_kv, dim_v))
    for name, tensor, shape in zip("qkv", (q, k, v), wanted):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}.shape is {list(tensor.shape)}; allowed: {list(shape)}")
    return q, k, v


def attend(
    number: int,
    place: tuple[int, ...],
    precision: MagiAttentionPrecision | None,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    options: tuple,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """Attention by the plan numbered `number`; place: its BoundPlan.place."""
    sink, sink_layout, softmax_scale, softcap, return_max_logits = options
    given_dtype = qkv[0].dtype if isinstance(qkv[0], torch.Tensor) else None
    q, k, v = check_local(*qkv, place, precision)
    scale = check_params(softmax_scale, softcap)
    sink, layout = check_sink(sink, sink_layout, q)
    out, lse, max_logits = DistAttention.apply(
        q, k, v, sink, number, scale, softcap, layout, return_max_logits
    )
    meta = AttnForwardMeta(lse=lse, max_logits=max_logits if return_max_logits else None)
    return out.to(given_dtype), meta
