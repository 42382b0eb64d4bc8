# SPDX-License-Identifier: Apache-2.0
"""Attention of one rank's rows under a plan, outside of compiled graphs."""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from magi_attention._group_holders import holds_groups
from magi_attention._native.allocator import AttentionHandle
from magi_attention._native.attention import Call, Options, Runner, dist_backward, dist_forward
from magi_attention._native.handles import PlanHandle
from magi_attention._native.tensors import as_plain
from magi_attention._native.vtable import Communicator
from magi_attention.comm.first_call import Backwards, FirstCalls, begin, first_calls_of
from magi_attention.comm.group import rank_tuple
from magi_attention.common._arguments import as_bool
from magi_attention.common._lru import LruCache
from magi_attention.common.enum import MagiAttentionPrecision
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.env import comm, general
from magi_attention.functional._calls import CallCache, calls_of, run, signature
from magi_attention.functional._checks import check_params, check_qkv, check_shape, check_sink
from magi_attention.functional._slices import runner_under

_log = logging.getLogger(__name__)

# Types of options that calls are found by as they are given; a tensor may change.
_CONSTANTS = (float, int, type(None))
Margins = tuple[int | None, int | None]  # multiprocessors in forward and backward, None: chosen
_OPTIONS_KEPT = 256  # ranks forget them alike, as all go through the same calls

# Operators name what they run by a number.
_by_number: weakref.WeakValueDictionary[int, RankAttention] = weakref.WeakValueDictionary()


class LocalShape(NamedTuple):
    """The shape that q, k and v of a rank must fit under a plan: rows of the rank, of which
    num_valid come before the padding, heads, head dims, and the name of the backend, None: the
    library's own.
    """

    rank: int
    rows: int
    num_valid: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    backend: str | None


NO_SHAPE = LocalShape(0, 0, 0, 0, 0, 0, 0, None)  # of keys without a plan


class RankAttention:
    """Attention of the tensors of local_shape. make_runner gives what runs the plan; the first call
    asks for it, as that compares the plans of the ranks. unpadded: what runs the rows before the
    padding, where those need no others; else tensors without padding are padded. named: what else
    ranks compare at the first call. number: names it in operators for as long as it lives.
    """

    _last_number = 0

    def __init__(
        self,
        local_shape: LocalShape,
        make_runner: Callable[[], Runner],
        cp_group: dist.ProcessGroup | None,
        unpadded: RankAttention | None = None,
        named: dict[str, str] | None = None,
    ) -> None:
        RankAttention._last_number += 1
        self.number = RankAttention._last_number
        _by_number[self.number] = self
        self.local_shape = local_shape
        self.precision = general.precision()
        self.is_fast_backward = not general.is_deterministic_mode_enable()
        self._make_runner, self._cp_group = make_runner, cp_group
        self.ranks = rank_tuple(cp_group)
        self._unpadded, self._named = unpadded, named or {}
        self._range_name = "magi_attention.calc_attn" if general.is_profile_mode_enable() else None
        holds_groups(self, "_cp_group")
        self._calls: CallCache | None = None
        # What ranks have agreed on, by what may change from call to call.
        self._agreed: LruCache = LruCache(_OPTIONS_KEPT)

    @property
    def calls(self) -> CallCache:
        """The prepared calls."""
        if self._calls is None:
            runner = self._make_runner()._replace(backwards=Backwards(self._cp_group))
            self._calls = calls_of(runner, self._range_name)
            rank, rows, *_ = self.local_shape
            _log.debug("calc_attn: rank %d of %d rows is ready", rank, rows)
        return self._calls

    def find_call(self, q, k, v, sink, options: Options) -> Call:
        """The prepared call of tensors that were checked. The first one with these options is
        collective: CommError on all ranks where they differ in what the plan does not hold.
        """
        begin(self._cp_group, self._agree(q, v, sink, options, {}))
        num_known = len(self.calls)
        call = self.calls.find(q, k, v, sink, options)
        if len(self.calls) > num_known:
            _log.debug("calc_attn: q %s, k %s, %s on %s", [*q.shape], [*k.shape], q.dtype, q.device)
        return call

    def begin_gathered(self, q, v, options: Options, **more: int) -> int:
        """Does what find_call does, for attention to rows that are gathered before; more: what else
        ranks compare. The number stands for what they have agreed on.
        """
        given = self._agree(q, v, None, options, {name: str(n) for name, n in more.items()})
        begin(self._cp_group, given)
        return int.from_bytes(
            hashlib.blake2b(repr(given).encode(), digest_size=8).digest(), "little"
        )

    def refuse(self, error: Exception) -> None:
        """Tells the other ranks, which may wait in this call, that this one raises error."""
        first_calls = first_calls_of(self._cp_group)
        if first_calls is None:
            return
        if len(self._agreed) > 0:
            first_calls.later.refuse(error)
        elif self._compares(first_calls):
            first_calls.refuse(error)

    def _agree(self, q, v, sink, options: Options, more: dict[str, str]) -> dict[str, str]:
        """Returns what ranks compare of a call, which they do if it is new. more: what else."""
        operation = None if sink is None else comm.dsink_all_reduce_op()
        num_sinks = None if sink is None else sink.shape[-2]
        heads = q.shape[1:], v.shape[1:]
        kind = (q.dtype, q.device.type, heads, options, num_sinks, operation, *more.values())
        given = self._agreed.get(kind)
        if given is None:
            given = self._named | _description(q, v, sink, options) | more
            first_calls = first_calls_of(self._cp_group)
            if first_calls is not None and self._compares(first_calls):
                first_calls.compare(given)
            self._agreed[kind] = given
        return given

    def _compares(self, first_calls: FirstCalls) -> bool:
        """Over nvlink a group's first plan alone is compared here: the GPUs compare every call
        there, and a round over the store takes longer than all else that a new mask does.
        """
        return self._named.get("transport") != "nvlink" or not first_calls.have_agreed

    def attend(self, q, k, v, given_options: tuple) -> tuple[torch.Tensor, AttnForwardMeta]:
        """out and meta; given_options: sink, its layout, softmax_scale, softcap, return_max_logits,
        as the caller gave them. Checked they become Options and a sink.
        """
        sink, sink_layout, softmax_scale, softcap, return_max_logits = given_options
        is_plain = (
            sink is None
            and self.precision is None
            and isinstance(softmax_scale, _CONSTANTS)
            and isinstance(softcap, _CONSTANTS)
            and isinstance(return_max_logits, bool)
        )
        if is_plain and self._calls is not None:
            # A call stands under what was given as well, so that arguments are checked once.
            known = self._calls.get((signature(q, k, v), given_options))
            if known is not None:
                call, agreed = known
                begin(self._cp_group, agreed)
                return run(q, k, v, None, call, None)
        if lacks_padding(q, self.local_shape):
            if self._unpadded is not None:
                return self._unpadded.attend(q, k, v, given_options)
            try:
                check_unpadded((q, k, v), self.local_shape.num_valid)
            except Exception as error:
                self.refuse(error)
                raise
            given = (q, k, v), given_options, self.local_shape
            return attend_padded(*given, lambda x, options: self.attend(*x, options))
        given_qkv = q, k, v
        try:
            q, k, v = check_local(q, k, v, self.local_shape, self.precision)
            scale, softcap = check_params(softmax_scale, softcap, q.dtype)
            sink, layout = check_sink(sink, sink_layout, q)
            return_max_logits = as_bool("return_max_logits", return_max_logits)
        except Exception as error:
            self.refuse(error)
            raise
        options = Options(
            scale, softcap, layout, return_max_logits,
            is_fast_backward=self.is_fast_backward,
        )  # fmt: skip
        call = self.find_call(q, k, v, sink, options)
        if is_plain:
            agreed = self._agree(q, v, None, options, {})
            self.calls[signature(*given_qkv), given_options] = call, agreed
        out, meta = run(q, k, v, sink, call, None if layout else self)
        return out.to(given_qkv[0].dtype), meta

    def reduce_dsink(self, dsink: torch.Tensor) -> None:
        """Sums or averages a shared sink's gradient over ranks where the environment asks."""
        operation = comm.dsink_all_reduce_op()
        if operation == "none" or self._cp_group is None:
            return
        dist.all_reduce(dsink, group=self._cp_group)
        if operation == "avg":
            dsink /= dist.get_world_size(self._cp_group)


def _description(q, v, sink: torch.Tensor | None, options: Options) -> dict[str, str]:
    """Returns what ranks must have in common besides the plan, as texts."""
    scale = options.scale or q.shape[2] ** -0.5
    layout = ("sh", "ssh")[options.sink_layout]
    return {
        "dtype": str(q.dtype).removeprefix("torch."),
        "device": q.device.type,
        "heads of q, k": f"{q.shape[1]}, {v.shape[1]}",
        "head_dim of q, v": f"{q.shape[2]}, {v.shape[2]}",
        "softmax_scale": f"{scale:.7g}",
        "softcap": f"{options.softcap:.7g}",
        "sink": "none" if sink is None else f"{sink.shape[-2]} in layout {layout}",
        "return_max_logits": str(bool(options.with_max_logits)),
        "MAGI_ATTENTION_DSINK_ALL_REDUCE_OP": comm.dsink_all_reduce_op(),
    }


def find_attention(number: int) -> RankAttention:
    """The one of this number; ValueError where it is gone."""
    found = _by_number.get(number)
    if found is None:
        raise ValueError(
            f"the plan numbered {number} is gone: its key left the cache, of which "
            "MAGI_ATTENTION_DIST_ATTN_RUNTIME_DICT_SIZE is the size"
        )
    return found


def layout_of(sink: torch.Tensor | None) -> str:
    """ "sh" for a sink of all rows, "ssh" for one per row."""
    return "ssh" if getattr(sink, "ndim", 2) == 3 else "sh"


def lacks_padding(q: torch.Tensor, local_shape: LocalShape) -> bool:
    """Whether q holds the rank's rows before the padding alone."""
    num_valid = local_shape.num_valid
    return (
        num_valid != local_shape.rows
        and isinstance(q, torch.Tensor)
        and q.ndim == 3
        and (q.shape[0] == num_valid)
    )


def check_unpadded(qkv: tuple, num_valid: int) -> None:
    """ValueError unless all have the rows before the padding."""
    for name, tensor in zip("qkv", qkv):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 3 or len(tensor) != num_valid:
            got = len(tensor) if isinstance(tensor, torch.Tensor) and tensor.ndim else tensor
            raise ValueError(f"{name} has {got} rows; allowed: {num_valid}, those of q")


def attend_padded(qkv: tuple, given_options: tuple, local_shape: LocalShape, attend: Callable):
    """attend(q, k, v, given_options) on tensors that lack the padding: it is added, and taken off
    the result. Keys of padding are seen by no row, and its queries see none.
    """
    rows, num_valid = local_shape.rows, local_shape.num_valid
    sink, *others = given_options
    if getattr(sink, "ndim", 2) == 3:
        sink = _padded(sink, rows)
    out, meta = attend(tuple(_padded(tensor, rows) for tensor in qkv), (sink, *others))
    return out[:num_valid], AttnForwardMeta(meta.lse[:num_valid], meta.max_logits)


def _padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - tensor.shape[0]
    return torch.cat((tensor, tensor.new_zeros((missing, *tensor.shape[1:]))))


def check_local(q, k, v, local_shape: LocalShape, precision: MagiAttentionPrecision | None):
    """q, k, v of one rank, cast where the environment asks."""
    if precision is not None:
        dtype = precision.to_torch_dtype()
        named = zip("qkv", (q, k, v))
        q, k, v = (as_plain(n, t).to(dtype) if isinstance(t, torch.Tensor) else t for n, t in named)
    rank, rows, num_valid, *_, backend = local_shape
    # Before they are compared with each other, which would name one that fits the plan.
    for name, tensor in zip("qkv", (q, k, v)):
        if isinstance(tensor, torch.Tensor) and tensor.ndim == 3 and tensor.shape[0] != rows:
            as_plain(name, tensor)  # refuses a distributed one, whose rows are no rank's
            or_fewer = "" if num_valid == rows else f", or {num_valid} without padding"
            raise ValueError(
                f"{name} has {tensor.shape[0]} rows; allowed: {rows}, "
                f"the plan's rows of rank {rank}{or_fewer}; try: bound.dispatch({name}), rows first"
            )
    q, k, v = check_qkv(q, k, v, backend)
    check_shapes((q, k, v), rows, local_shape)
    return q, k, v


def check_rows(name: str, found: int | str, rows: int, num_valid: int) -> None:
    """ValueError unless these are the rows of a rank, with or without its padding."""
    if found not in (rows, num_valid):
        or_fewer = "" if num_valid == rows else f", or {num_valid} without padding"
        raise ValueError(f"{name} has {found} rows; allowed: {rows}, this rank's rows{or_fewer}")


def check_shapes(qkv: tuple[torch.Tensor, ...], rows: int, local_shape: LocalShape) -> None:
    """ValueError unless q, k and v have so many rows, and the heads of the plan."""
    heads_q, heads_kv, dim, dim_v = local_shape[3:7]
    wanted = (rows, heads_q, dim), (rows, heads_kv, dim), (rows, heads_kv, dim_v)
    for name, tensor, shape in zip("qkv", qkv, wanted):
        check_shape(name, tensor, shape)


def runner_of(
    plan: PlanHandle,
    local_rows: int,
    communicator: Communicator,
    exchange_sms: Margins,
    backend: str | None,
    rounds_partials: bool,
) -> Runner:
    """Returns what runs a plan as one rank; exchange_sms: forward's, backward's. Collective."""
    if plan.report().num_ranks == 1:  # rows are in the order of the sequence
        return runner_under(plan.mask().resized(local_rows, local_rows), backend)
    forward_sms, backward_sms = exchange_sms
    handle = AttentionHandle(plan, communicator, forward_sms, backend, rounds_partials)
    if backward_sms == forward_sms:
        return Runner(dist_forward, dist_backward, handle.address, handle)
    other = AttentionHandle(plan, communicator, backward_sms, backend, rounds_partials)
    return Runner(
        dist_forward, dist_backward, handle.address, (handle, other), backward_handle=other.address
    )
