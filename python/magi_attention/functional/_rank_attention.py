# SPDX-License-Identifier: Apache-2.0
"""Attention of one rank's rows under a plan, outside of compiled graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist

from magi_attention._native.attention import Options, Runner
from magi_attention._native.tensors import as_plain
from magi_attention.common.enum import MagiAttentionPrecision
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.env import comm, general
from magi_attention.functional._calls import CallCache, calls_of, signature
from magi_attention.functional._checks import check_params, check_qkv, check_sink
from magi_attention.functional._eager import run

# Operators name what they run by a number.
_by_number: weakref.WeakValueDictionary[int, RankAttention] = weakref.WeakValueDictionary()


class RankAttention:
    """place: what tensors must fit: rank, its rows, heads of q and of k, head dims of q and v, and
    the name of the backend, or None.
    make_runner gives what runs the plan; the first call asks for it, as that compares the plans of
    the ranks. number: names it in operators for as long as it lives.
    """

    _last_number = 0

    def __init__(
        self,
        place: tuple,
        make_runner: Callable[[], Runner],
        cp_group: dist.ProcessGroup | None,
    ) -> None:
        RankAttention._last_number += 1
        self.number = RankAttention._last_number
        _by_number[self.number] = self
        self.place = place
        self.precision = general.precision()
        self.is_fast_backward = not general.is_deterministic_mode_enable()
        self._make_runner, self._cp_group = make_runner, cp_group
        self._calls: CallCache | None = None

    @property
    def calls(self) -> CallCache:
        """The prepared calls."""
        if self._calls is None:
            self._calls = calls_of(self._make_runner())
        return self._calls

    def attend(self, q, k, v, options: tuple) -> tuple[torch.Tensor, AttnForwardMeta]:
        """out and meta; options: sink, its layout, softmax_scale, softcap, return_max_logits."""
        sink, sink_layout, softmax_scale, softcap, return_max_logits = options
        is_plain = sink is None and self.precision is None
        if is_plain and self._calls is not None:
            # A call stands under what was given as well, so that arguments are checked once.
            call = self._calls.get((signature(q, k, v), options))
            if call is not None:
                return run(q, k, v, None, call, None)
        given = q, k, v
        q, k, v = check_local(q, k, v, self.place, self.precision)
        scale = check_params(softmax_scale, softcap)
        sink, layout = check_sink(sink, sink_layout, q)
        params = Options(
            scale, softcap, layout, return_max_logits, is_fast_backward=self.is_fast_backward
        )
        call = self.calls.find(q, k, v, sink, params)
        if is_plain:
            self.calls[signature(*given), options] = call
        out, meta = run(q, k, v, sink, call, None if layout else self)
        return out.to(given[0].dtype), meta

    def reduce_dsink(self, dsink: torch.Tensor) -> None:
        """Sums or averages a shared sink's gradient over ranks where the environment asks."""
        operation = comm.dsink_all_reduce_op()
        if operation == "none" or self._cp_group is None:
            return
        dist.all_reduce(dsink, group=self._cp_group)
        if operation == "avg":
            dsink /= dist.get_world_size(self._cp_group)


def find_attention(number: int) -> RankAttention:
    """The one of this number; ValueError where it is gone."""
    found = _by_number.get(number)
    if found is None:
        raise ValueError(f"the plan numbered {number} is gone: its key left the cache")
    return found


def layout_of(sink: torch.Tensor | None) -> str:
    """ "sh" for a sink of all rows, "ssh" for one per row."""
    return "ssh" if getattr(sink, "ndim", 2) == 3 else "sh"


def check_local(q, k, v, place: tuple, precision: MagiAttentionPrecision | None):
    """q, k, v of one rank, cast where the environment asks; place: RankAttention.place."""
    if precision is not None:
        dtype = precision.to_torch_dtype()
        named = zip("qkv", (q, k, v))
        q, k, v = (as_plain(n, t).to(dtype) if isinstance(t, torch.Tensor) else t for n, t in named)
    rank, rows, heads_q, heads_kv, dim, dim_v, backend = place
    q, k, v = check_qkv(q, k, v, backend)
    for name, tensor in (("q", q), ("k", k)):
        if tensor.shape[0] != rows:
            raise ValueError(
                f"{name} has {tensor.shape[0]} rows; allowed: {rows}, "
                f"the plan's rows of rank {rank}"
            )
    wanted = ((rows, heads_q, dim), (rows, heads_kv, dim), (rows, heads_kv, dim_v))
    for name, tensor, shape in zip("qkv", (q, k, v), wanted):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}.shape is {list(tensor.shape)}; allowed: {list(shape)}")
    return q, k, v
