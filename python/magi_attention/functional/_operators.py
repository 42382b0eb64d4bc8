# SPDX-License-Identifier: Apache-2.0
"""Custom operators of attention on one device, under ranges and under lists of keys, with their
fake implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from magi_attention._native.attention import Call, Options, accumulator_dtype, is_latent
from magi_attention._native.lists import KeyLists, listed_call
from magi_attention._native.tensors import as_plain, refuse_tangent
from magi_attention.backends._registry import MMA
from magi_attention.backends._table import ensure
from magi_attention.common._arguments import check_int, trying
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.functional._calls import refusal
from magi_attention.functional._checks import (
    check_computed_sink,
    check_params,
    check_place,
    check_qkv,
    check_ranges,
    check_results,
    check_sm_margin,
    check_type,
)
from magi_attention.functional._kept import kept
from magi_attention.functional._slices import RangesInvocation, host_call, mask_of

NAMESPACE = "magi_attention"
_library = torch.library.Library(NAMESPACE, "DEF")


# The tags of an operator that CUDA graphs of torch.compile must leave out;
# older releases of torch have no such tag.
UNCAPTURED = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()


def define(name: str, schema: str, fake, implementation, **options) -> None:
    """Defines an operator for CPUs and GPUs, with a fake of equal shapes, types and strides."""
    _library.define(name + schema, **options)
    for device in ("CPU", "CUDA"):
        _library.impl(name, implementation, device)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


def distinct(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """The tensors, with a view in place of each that comes again: a compiler refuses a Function
    that takes one tensor for two arguments. Their gradients add up.
    """
    found: list[torch.Tensor | None] = []
    for tensor in tensors:
        comes_again = tensor is not None and any(tensor is other for other in found)
        found.append(tensor.view_as(tensor) if comes_again else tensor)
    return found


def fake_forward(q, k, v, with_max_logits: bool):
    """out, lse and max_logits of a forward call, not filled; max_logits is empty unless asked
    for.
    """
    rows, heads, wide = q.shape[0], q.shape[1], accumulator_dtype(q.dtype)
    return (
        q.new_empty((rows, heads, v.shape[2])),
        q.new_empty((rows, heads), dtype=wide),
        q.new_empty((heads if with_max_logits else 0,), dtype=wide),
    )


def fake_backward(q, k, v, sink, out, lse):
    """dq, dk, dv and dsink of a backward call, not filled; dv is empty where is_latent, dsink
    without a sink. torch asks for them too if one tensor is on meta.
    """
    for name, tensor in (("k", k), ("v", v), ("out", out), ("lse", lse)):
        check_place(name, tensor, q.device)
    dsink = q.new_empty((0,)) if sink is None else sink.new_empty(sink.shape)
    dv = v.new_empty((0,) if is_latent(q, v) else v.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), dv, dsink


def forward(call, q, k, v, sink):
    """Allocates what fake_forward describes."""
    out, lse, max_logits = call.forward(q, k, v, sink)
    return out, lse, lse.new_empty((0,)) if max_logits is None else max_logits


def backward(call, dout, dlse, q, k, v, out, lse, sink):
    """Allocates what fake_backward describes."""
    dout, dlse = dout.contiguous(), None if dlse is None else dlse.contiguous()
    dq, dk, *others = call.backward(dout, dlse, q, k, v, out, lse, sink)
    return dq, dk, *(q.new_empty((0,)) if x is None else x for x in others)


def flex_call(
    q, k, v, sink, mask: tuple, options: Options, backend: str | None
) -> Call | RangesInvocation:
    """Returns the call of forward and backward under q_ranges, k_ranges and types (or None)."""
    if not mask[0].is_cuda:
        return mask_of(q.shape[0], k.shape[0], *mask, backend).calls.find(q, k, v, sink, options)
    if backend not in (None, MMA):
        return host_call(q, k, v, sink, mask, options, backend)
    return RangesInvocation(q, k, v, sink, mask, options, backend)


def knows_symbols() -> bool:
    from torch.fx.experimental import symbolic_shapes

    return hasattr(symbolic_shapes, "has_static_value")  # not in torch 2.6


knows_symbols._dynamo_marked_constant = True


def symbolic(number: float) -> torch.Tensor | None:
    """A symbolic number of a compiler as a tensor in host memory, None for other numbers. A graph
    takes the tensor as an input; an operator's float would become part of the graph.
    """
    if not torch.compiler.is_dynamo_compiling() or not knows_symbols():
        return None
    # A compiler has loaded this; a program that compiles nothing would wait for it.
    from torch.fx.experimental.symbolic_shapes import has_static_value

    if has_static_value(number):
        return None
    return torch.ones((), dtype=torch.float64, device="cpu") * number


def with_symbols(scale: float, softcap: float) -> tuple[float, float, list[torch.Tensor | None]]:
    """scale, softcap and their symbolic forms; a number that has one is 0."""
    symbols = [symbolic(scale), symbolic(softcap)]
    numbers = (0.0 if s is not None else n for s, n in zip(symbols, (scale, softcap)))
    return *numbers, symbols


def number_of(number: float, symbol: torch.Tensor | None) -> float:
    """The number, or that of its symbolic form."""
    return number if symbol is None else symbol.item()


def refuse_derivatives(dout, dlse) -> None:
    """Refuses second derivatives and tangents in a backward, before operators hide them."""
    refuse_second_derivative("attention")
    refuse_tangent("dout", dout)
    refuse_tangent("dlse", dlse)


MAX_BLOCK = (1 << 30) - 1


def check_lists(
    indices: torch.Tensor,
    block: int,
    shape: tuple[int, int],
    device: torch.device,
    name: str = "index_sparse_indices",
) -> torch.Tensor:
    """Lists int32 [*shape, n] as a plain tensor on the device; block: sparse_k_block_size. name:
    the argument's.
    """
    check_int("sparse_k_block_size", block, 1, MAX_BLOCK)
    with trying("block_sparse_attn_func, which takes bool masks of blocks", "torch.bool"):
        check_type(name, indices, torch.int32, "an int32 tensor")
    if indices.dim() != 3 or tuple(indices.shape[:2]) != shape:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} has shape {list(indices.shape)}; allowed: [{wanted}, n]")
    check_place(name, indices, device)
    return as_plain(name, indices)


class _Form(NamedTuple):
    """A form of masks on one device, in schemas of its operators: tensors before the sink, numbers
    after it, and the last arguments. call_of(qkv, sink, mask, numbers, options, backend) returns
    the call and num_words tensors, which forward returns too.
    """

    mask: str
    numbers: str
    end: str
    num_words: int
    call_of: Callable[..., tuple]


def _define_form(name: str, form: _Form) -> None:
    """Defines the operators `name`_forward and `name`_backward. Both read equally many arguments
    from a tuple: after q, k, v, or after out and lse.
    """
    num_mask, num_numbers = form.mask.count(","), form.numbers.count(",")

    def prepare(q, k, v, rest: tuple, is_backward: bool):
        """Checks what the functions over operators check, for callers of these and of graphs."""
        rest = (*rest, None, None, None)  # torch leaves out what has its default
        mask, sink, rest = rest[:num_mask], rest[num_mask], rest[num_mask + 1 :]
        numbers, (scale, softcap, layout, *features) = rest[:num_numbers], rest[num_numbers:]
        first, second, scale_symbol, softcap_symbol, backend, *_ = features
        with_max_logits, sm_margin = (False, first) if is_backward else (first, second)
        scale, softcap = number_of(scale, scale_symbol), number_of(softcap, softcap_symbol)
        ensure(backend)
        q, k, v = qkv = check_qkv(q, k, v, backend, under_lists=name == "listed")
        check_sm_margin(sm_margin, backend)
        check_params(scale or None, softcap, q.dtype)
        sink = check_computed_sink(sink, layout, q)
        is_fast = is_backward and not second
        options = Options(scale, softcap, layout, with_max_logits, sm_margin, is_fast)
        call, *words = form.call_of(qkv, sink, mask, numbers, options, backend)
        return call, (*qkv, sink), words

    def fake_of_forward(q, k, v, *rest):
        words = (q.new_empty((2,), dtype=torch.int64) for _ in range(form.num_words))
        return (*fake_forward(q, k, v, rest[num_mask + num_numbers + 4]), *words)

    def run_forward(q, k, v, *rest):
        call, tensors, words = prepare(q, k, v, rest, False)
        return (*forward(call, *tensors), *words)

    def fake_of_backward(dout, dlse, q, k, v, out, lse, *rest):
        return fake_backward(q, k, v, rest[num_mask], out, lse)

    def run_backward(dout, dlse, q, k, v, out, lse, *rest):
        call, (q, k, v, sink), _ = prepare(q, k, v, rest, True)
        dout, dlse, out, lse = check_results(q, v, dout=dout, dlse=dlse, out=out, lse=lse)
        return backward(call, dout, dlse, q, k, v, out, lse, sink)

    qkv = "Tensor q, Tensor k, Tensor v, "
    common = f"{form.mask}Tensor? sink, {form.numbers}float scale, float softcap, int sink_layout, "
    end = f", Tensor? scale_symbol=None, Tensor? softcap_symbol=None{form.end}) -> "
    results = ", ".join(["Tensor"] * (3 + form.num_words))
    schema = f"({qkv}{common}bool with_max_logits, int sm_margin{end}({results})"
    define(f"{name}_forward", schema, fake_of_forward, run_forward)
    given = f"Tensor dout, Tensor? dlse, {qkv}Tensor out, Tensor lse, "
    gradients = "(Tensor, Tensor, Tensor, Tensor)"
    schema = f"({given}{common}int sm_margin, bool deterministic{end}{gradients}"
    define(f"{name}_backward", schema, fake_of_backward, run_backward)


def _flex_call(qkv, sink, mask, numbers, options: Options, backend: str | None) -> tuple:
    return (flex_call(*qkv, sink, check_ranges(qkv[0], *mask), options, backend),)


def _listed_call(qkv, sink, mask, numbers, options: Options, backend: None) -> tuple:
    q, k, _ = qkv
    lists = KeyLists(check_lists(*mask, *numbers, (q.shape[0], k.shape[1]), q.device), *numbers)
    return listed_call(*qkv, sink, lists, options), lists.report


_RANGES = "Tensor q_ranges, Tensor k_ranges, Tensor? types, "
_define_form("flex", _Form(_RANGES, "", ", str? backend=None", 0, _flex_call))
_define_form("listed", _Form("Tensor indices, ", "int block, ", "", 1, _listed_call))
flex_forward_op = torch.ops.magi_attention.flex_forward.default
flex_backward_op = torch.ops.magi_attention.flex_backward.default
listed_forward_op = torch.ops.magi_attention.listed_forward.default
listed_backward_op = torch.ops.magi_attention.listed_backward.default


class ListedAttention(torch.autograd.Function):
    """out, lse, max_logits and the error word; gradients come through out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, indices, sink, symbol, cap_symbol, block, options):
        symbols = symbol, cap_symbol
        *options, deterministic = options
        out, lse, max_logits, word = kept(
            listed_forward_op, q, k, v, indices, sink, block, *options, *symbols
        )
        ctx.save_for_backward(q, k, v, out, lse, indices, sink, *symbols)
        scale, softcap, layout, _, sm_margin = options
        ctx.params = (block, scale, softcap, layout, sm_margin, deterministic)
        ctx.refuse = refusal()
        ctx.mark_non_differentiable(max_logits, word)
        return out, lse, max_logits, word

    @staticmethod
    def backward(ctx, dout, dlse, _dmax_logits, _dword):
        try:
            refuse_derivatives(dout, dlse)
            *tensors, sink, symbol, cap_symbol = ctx.saved_tensors
            q, k, v = tensors[:3]
            if is_latent(q, v):  # hooks may have given back tensors apart
                tensors[2] = k[..., : v.shape[2]]
            dq, dk, dv, dsink = listed_backward_op(
                dout, dlse, *tensors, sink, *ctx.params, symbol, cap_symbol
            )
        except Exception as error:
            if ctx.refuse is not None:
                ctx.refuse(error)
            raise
        dv = None if is_latent(q, v) else dv  # it is in dk
        return dq, dk, dv, None, None if sink is None else dsink, *[None] * 4
