# SPDX-License-Identifier: Apache-2.0
"""Attention to keys and values that are projections of latent rows (MLA), over the ranks of a plan:
latents travel, and the rank that needs them projects them, some heads at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from magi_attention._native.attention import Options, accumulator_dtype
from magi_attention._native.moved_rows import joined
from magi_attention._native.tensors import as_plain, refuse_transforms
from magi_attention.common._arguments import check_int, check_kind
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.functional._calls import calls_of
from magi_attention.functional._checks import check_params, check_qkv, check_results, check_shape
from magi_attention.functional._kept import kept
from magi_attention.functional._operators import NAMESPACE, define
from magi_attention.functional._rank_attention import RankAttention, check_rows
from magi_attention.functional._slices import runner_under
from magi_attention.functional.latent_price import LatentPrice
from magi_attention.functional.needed_rows import NeededRows

MODES = ("auto", "latent", "expanded")
_EXPANDED_BYTES = 1 << 30  # of projected keys and values that are there at a time
_ALIGNMENT = 16  # bytes, of the values that kernels read

_by_number: weakref.WeakValueDictionary[int, LatentAttention] = weakref.WeakValueDictionary()


class LatentShape(NamedTuple):
    """Sizes of latent attention: kv heads, those at a time, and elements of a latent, of the part
    of a key that is rotated, of the other part, and of a value.
    """

    heads: int
    heads_at_once: int
    latent: int
    rope: int
    nope: int
    value: int

    def groups(self) -> Iterator[tuple[int, int]]:
        """(first, last + 1) of the heads of each group."""
        for first in range(0, self.heads, self.heads_at_once):
            yield first, min(first + self.heads_at_once, self.heads)


class LatentAttention:
    """Attention of one rank's rows to needed rows, which are latents. number: names it in operators
    for as long as it lives. price: of a latent's and a rotated part's elements, under the plan.
    """

    _last_number = 0

    def __init__(
        self, needed: NeededRows, attention: RankAttention, price: Callable[[int, int], LatentPrice]
    ) -> None:
        LatentAttention._last_number += 1
        self.number = LatentAttention._last_number
        _by_number[self.number] = self
        self.needed, self.attention = needed, attention
        backend = attention.local_shape.backend
        # The prepared calls of so many own rows: all of them, or those before the padding.
        self._calls_of = cache(lambda rows: calls_of(runner_under(needed.mask(rows), backend)))
        self._mode_of = cache(lambda *sizes: price(*sizes).mode)

    def mode(self, mode: str, latent: int, rope: int) -> str:
        """The mode, or what "auto" is for a latent and a rotated part of so many elements."""
        return self._mode_of(latent, rope) if mode == "auto" else mode

    def groups(self, q, rows, weight, shape: LatentShape, options: Options):
        """Yields for each group of heads: its query heads and rows of weight, as slices, its q, k
        and v, and the call.
        """
        ratio, width = q.shape[1] // shape.heads, shape.nope + shape.value
        latent, rope = rows.split((shape.latent, shape.rope), 1)
        calls, options = self._calls_of(q.shape[0]), options._replace(whole_heads=q.shape[1])
        for first, last in shape.groups():
            heads, of_weight = (slice(first * n, last * n) for n in (ratio, width))
            expanded = expand(latent, rope, weight[of_weight], last - first, shape)
            qkv = check_qkv(q[:, heads], *expanded, self.attention.local_shape.backend)
            yield heads, of_weight, qkv, calls.find(*qkv, None, options)

    def forward(self, q, rows, weight, shape: LatentShape, options: Options):
        """out and lse of q and needed rows [n, latent and rope]."""
        out = q.new_empty((*q.shape[:2], shape.value))
        lse = q.new_empty(q.shape[:2], dtype=accumulator_dtype(q.dtype))
        for heads, _, qkv, call in self.groups(q, rows, weight, shape, options):
            call.forward(*qkv, None, (out[:, heads], lse[:, heads], None))
        return out, lse

    def backward(self, dout, dlse, saved: tuple, shape: LatentShape, options: Options):
        """The gradients of q, of the needed rows, float32 or wider, and of the weight."""
        q, rows, weight, out, lse = saved
        given = check_results(q, out, dout=dout, dlse=dlse, out=out, lse=lse)
        dq, dweight = q.new_empty(q.shape), torch.empty_like(weight)
        latent = rows[:, : shape.latent]
        wide = torch.promote_types(rows.dtype, torch.float32)
        drows = torch.zeros_like(rows, dtype=wide)
        dlatent, drope = drows.split((shape.latent, shape.rope), 1)
        for heads, of_weight, qkv, call in self.groups(q, rows, weight, shape, options):
            dout, dlse, *results = (None if x is None else x[:, heads] for x in given)
            dk, dv = (x.new_empty(x.shape) for x in qkv[1:])
            gradients = dq[:, heads], dk, dv, None
            call.backward(dout, dlse, *qkv, *results, None, gradients)
            of_projection = joined(dk[..., : shape.nope], dv).flatten(1)
            dlatent += of_projection @ weight[of_weight]
            drope += dk[..., shape.nope :].sum(1, dtype=wide)
            torch.mm(of_projection.T, latent, out=dweight[of_weight])
        return dq, drows, dweight


def expand(latent, rope, weight, heads: int, shape: LatentShape):
    """k and v [rows, heads, ...] of rows whose weight has so many heads."""
    both = (latent @ weight.T).view(latent.shape[0], heads, shape.nope + shape.value)
    nope, v = both.split((shape.nope, shape.value), 2)
    parts = nope, rope.unsqueeze(1).expand(-1, heads, -1)
    k = torch.cat(parts, 2) if torch.is_grad_enabled() else joined(*parts)
    return k, v if shape.nope * v.itemsize % _ALIGNMENT == 0 else v.contiguous()


def _forward(q, rows, weight, number: int, sizes: list[int], scale: float, softcap: float):
    found = _by_number[number]
    options = Options(scale, softcap, is_fast_backward=found.attention.is_fast_backward)
    return found.forward(q, rows, weight, LatentShape(*sizes), options)


def _fake_forward(q, rows, weight, number: int, sizes: list[int], *_):
    lse = q.new_empty(q.shape[:2], dtype=accumulator_dtype(q.dtype))
    return q.new_empty((*q.shape[:2], LatentShape(*sizes).value)), lse


define(
    "latent_forward",
    "(Tensor q, Tensor rows, Tensor weight, int latents, int[] sizes, float scale, float softcap)"
    " -> (Tensor, Tensor)",
    _fake_forward,
    _forward,
)
latent_forward_op = getattr(torch.ops, NAMESPACE).latent_forward.default


class _Latents(torch.autograd.Function):
    """out and lse of q, own rows [latent and rope] and weight; gradients come through both."""

    @staticmethod
    def forward(ctx, q, own, weight, latents: LatentAttention, shape, options: Options, call: int):
        (rows,) = latents.needed.fetched((own,), call)
        numbers = options.scale, options.softcap
        given = q, rows, weight, latents.number, list(shape), *numbers
        out, lse = kept(latent_forward_op, *given)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, rows, weight, out, lse)
        ctx.given = latents, shape, options, call
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        latents, shape, options, call = ctx.given
        with latents.needed.backward("attention"):
            saved = ctx.saved_tensors
            dout = torch.zeros_like(saved[3]) if dout is None else dout
            with torch.autocast(dout.device.type, enabled=False):
                dq, drows, dweight = latents.backward(dout, dlse, saved, shape, options)
            (down,) = latents.needed.returned((drows,), call)
        return dq, down.to(dq.dtype), dweight, None, None, None, None


def attend_to_latents(
    latents: LatentAttention,
    calc_attn: Callable,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    numbers: tuple[float | None, float],
    mode: str,
    heads_at_once: int | None,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """tensors: q, latent, k_rope, up_projection; numbers: softmax_scale, softcap. See
    BoundPlan.calc_latent_attn.
    """
    attention = latents.attention
    try:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; allowed: {', '.join(map(repr, MODES))}")
        q, latent, rope, weight = tensors
        scale, softcap = check_params(*numbers, q.dtype)
        shape = latent_shape(attention, tensors, latents.needed.num_received, heads_at_once)
    except Exception as error:
        attention.refuse(error)
        raise
    with torch.autocast(q.device.type, enabled=False):  # projections are of the type of q
        if latents.mode(mode, shape.latent, shape.rope) == "expanded":
            k, v = expand(latent, rope, weight, shape.heads, shape)
            # Narrower than the plan's: zeros change nothing.
            v = pad(v, (0, attention.local_shape.head_dim_v - shape.value))
            out, meta = calc_attn(q, k, v, None, *numbers)
            return out[..., : shape.value], meta
        options = Options(scale, softcap, is_fast_backward=attention.is_fast_backward)
        rows = torch.cat((latent, rope), 1)
        call = attention.begin_gathered(q, rows.unsqueeze(1), options, latent=shape.latent)
        out, lse = _Latents.apply(q, rows, weight, latents, shape, options, call)
        return out, AttnForwardMeta(lse, None)


def latent_shape(
    attention: RankAttention, tensors: tuple, num_received: int, heads_at_once: int | None
) -> LatentShape:
    """The sizes that tensors have in common; TypeError or ValueError names one that does not fit
    the plan or the others.
    """
    refuse_transforms()
    names = ("q", "latent", "k_rope", "up_projection")
    for name, tensor, axes in zip(names, tensors, (3, 2, 2, 2)):
        check_kind(name, tensor, torch.Tensor, "a torch.Tensor")
        as_plain(name, tensor)
        if tensor.dim() != axes:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; allowed: {axes} axes")
        if tensor.dtype != tensors[0].dtype or tensor.device != tensors[0].device:
            raise TypeError(
                f"{name} is {tensor.dtype} on {tensor.device}; allowed: {tensors[0].dtype} on "
                f"{tensors[0].device}, as q"
            )
    q, latent, rope, weight = tensors
    _, rows, num_valid, heads_q, heads, dim, widest, _ = attention.local_shape
    check_rows("q", q.shape[0], rows, num_valid)
    check_shape("q", q, (q.shape[0], heads_q, dim))
    check_shape("latent", latent, (q.shape[0], latent.shape[1]))
    check_shape("k_rope", rope, (q.shape[0], rope.shape[1]))
    nope = dim - rope.shape[1]
    value, rest = divmod(weight.shape[0], heads)
    fits = nope >= 0 and not rest and nope < value <= nope + widest
    if not fits or weight.shape[1] != latent.shape[1]:
        raise ValueError(
            f"up_projection has shape {list(weight.shape)}; allowed: [{heads} * ({nope} + 1 to "
            f"{widest}), {latent.shape[1]}], by the plan and k_rope of {rope.shape[1]} elements"
        )
    if heads_at_once is None:
        of_head = (q.shape[0] + num_received) * (dim + value - nope) * q.itemsize
        heads_at_once = min(heads, max(1, _EXPANDED_BYTES // max(1, of_head)))
    check_int("heads_at_once", heads_at_once, 1, heads)
    return LatentShape(heads, heads_at_once, latent.shape[1], rope.shape[1], nope, value - nope)
