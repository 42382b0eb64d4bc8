# SPDX-License-Identifier: Apache-2.0
"""out and lse of the FlashAttention that is installed, corrected with a sink.

A sink adds to the denominator of a row alone, so FlashAttention's forward stays as it is; its
backward is given out and lse with the sink in them, which makes its weights those of the whole row.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from magi_attention._native.tensors import as_plain
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.functional._checks import check_sink
from magi_attention.functional.utils import correct_attn_out_lse_with_sink, sink_bwd

_TYPES = (torch.float16, torch.bfloat16)
_MAX_DIM = 256


class _Release(NamedTuple):
    """A release of FlashAttention: the module of its functions, the GPUs that it serves by the
    major number of their compute capability, the argument that asks for lse, the name of its
    backward for batches and for packed documents, and whether that takes a gradient of lse.
    """

    module: str
    majors: tuple[int, ...]
    asking_for_lse: str
    backwards: tuple[str, str]
    has_dlse: bool


_OF_2 = "_flash_attn_backward", "_flash_attn_varlen_backward"
_RELEASES = {
    2: _Release(
        "flash_attn.flash_attn_interface", (8, 9, 10, 11, 12), "return_attn_probs", _OF_2, False
    ),
    3: _Release("flash_attn_interface", (9,), "return_attn_probs", (_OF_2[0],) * 2, False),
    4: _Release(
        "flash_attn.cute.interface", (9, 10, 11), "return_lse", ("_flash_attn_bwd",) * 2, True
    ),
}


class Options(NamedTuple):
    """The arguments that every function here takes. release: of FlashAttention, 2, 3 or 4, whose
    kernels are used where it is installed and serves the tensors. window_size: keys (left, right)
    of the diagonal, aligned bottom right, that are seen, -1: all; causal: none right of it. bounds:
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k of packed documents, None for batches.
    """

    release: int
    sink: torch.Tensor | None
    sink_layout: str
    softmax_scale: float | None
    causal: bool
    window_size: Sequence[int] = (-1, -1)
    softcap: float = 0.0
    deterministic: bool = False
    sm_margin: int = 0
    return_attn_probs: bool = False
    bounds: tuple | None = None


def serves(release: int, q: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether this release is installed and its kernels take such tensors."""
    dims = q.shape[-1], v.shape[-1]
    fits = q.is_cuda and q.dtype in _TYPES and dims[0] == dims[1]
    if not fits or dims[0] % 8 or dims[0] > _MAX_DIM or not q.numel() or not v.numel():
        return False
    major = torch.cuda.get_device_capability(q.device)[0]
    if release == 4 and major != 9 and 128 < dims[0] < _MAX_DIM:
        return False
    return major in _RELEASES[release].majors and _is_installed(_RELEASES[release].module)


@functools.cache
def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def attend(q, k, v, options: Options):
    """out like q, and lse [heads, rows] or [batch, heads, rows] where it is asked for, with
    gradients. Tensors are [rows, heads, dim], or [batch, rows, heads, dim]; a sink of every row is
    [rows of all, sinks, heads].
    """
    sink = options.sink
    q, k, v = map(as_plain, "qkv", (q, k, v))
    if sink is not None:
        sink, _ = check_sink(sink, options.sink_layout, q.flatten(0, -3))
    out, lse = _WithSink.apply(q, k, v, sink, options._replace(sink=None))
    return (out, lse) if options.return_attn_probs else out


_SAVED = ("q", "k", "v", "out", "lse", "sink")


class _WithSink(torch.autograd.Function):
    """out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, sink, call):
        release = _RELEASES[call.release]
        name = "flash_attn_func" if call.bounds is None else "flash_attn_varlen_func"
        function = getattr(importlib.import_module(release.module), name)
        out, lse, *_ = function(q, k, v, **_forward_arguments(function, call))
        _check_lse(lse, q, call)
        lse = lse.masked_fill(lse.isinf(), -torch.inf)  # release 2 says inf of rows without keys
        if sink is not None:
            corrected, rows_lse = correct_attn_out_lse_with_sink(
                out.flatten(0, -3), _by_rows(lse), sink, call.sink_layout
            )
            of_heads = rows_lse.unflatten(0, (*lse.shape[:-2], lse.shape[-1])).transpose(-1, -2)
            out, lse = corrected.view_as(out), of_heads.contiguous()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, sink)
        ctx.kinds = [_kind(t) for t in (q, k, v, out, lse, sink)]
        ctx.call = call
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        refuse_second_derivative("attention")
        layout, saved = ctx.call.sink_layout, []
        for name, tensor, kind in zip(_SAVED, ctx.saved_tensors, ctx.kinds):
            if _kind(tensor) != kind:
                raise ValueError(f"{name} is {_kind(tensor)} in backward; allowed: {kind}")
            saved.append(None if tensor is None else as_plain(name, tensor))
        q, k, v, out, lse, sink = saved
        if dlse is not None and not _RELEASES[ctx.call.release].has_dlse:
            raise NotImplementedError(
                f"lse has no gradient with FlashAttention {ctx.call.release}; use out alone"
            )
        dout = torch.zeros_like(out) if dout is None else as_plain("dout", dout).contiguous()
        gradients = _gradients(ctx.call, q, k, v, out, lse, dout, dlse)
        dsink = None
        if sink is not None:
            of_rows = (t.flatten(0, -3) for t in (out, dout))
            dsink = sink_bwd(sink, _by_rows(lse), *of_rows, layout)
            if dlse is not None:
                dsink += _through_lse(sink, _by_rows(lse), _by_rows(dlse), layout)
        return *gradients, dsink, None


def _kind(tensor: torch.Tensor | None) -> tuple:
    return () if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.device)


def _through_lse(sink, lse, dlse, sink_layout: str) -> torch.Tensor:
    """The gradient of the sink through lse; all [rows, heads]."""
    rows = sink.unsqueeze(0) if sink_layout == "sh" else sink
    known = lse.masked_fill(lse.isneginf(), 0.0)
    found = torch.exp(rows - known.unsqueeze(1)) * dlse.unsqueeze(1)
    return found.sum(0) if sink_layout == "sh" else found


def _check_lse(lse: torch.Tensor, q: torch.Tensor, call: Options) -> None:
    """NotImplementedError for an old release, which pads documents."""
    wanted = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    if tuple(lse.shape) != wanted:
        raise NotImplementedError(
            f"lse of FlashAttention {call.release} has shape {list(lse.shape)}; allowed: "
            f"{list(wanted)}, that of a later one"
        )


def _forward_arguments(function: Callable, call: Options) -> dict[str, Any]:
    """Only what is not the default: releases differ in what they know."""
    release = _RELEASES[call.release]
    asked = {
        "causal": call.causal,
        "softcap": call.softcap,
        "deterministic": call.deterministic,
        "sm_margin": call.sm_margin,
        "window_size": None if tuple(call.window_size) == (-1, -1) else tuple(call.window_size),
    }
    found = {name: value for name, value in asked.items() if value}
    if call.softmax_scale is not None:
        found["softmax_scale"] = call.softmax_scale
    if release.asking_for_lse in _parameters(function):  # some always give it
        found[release.asking_for_lse] = True
    return found | _bounds_by_name(call)


def _gradients(call: Options, q, k, v, out, lse, dout, dlse) -> list[torch.Tensor]:
    release = _RELEASES[call.release]
    function = getattr(
        importlib.import_module(release.module), release.backwards[call.bounds is not None]
    )
    made = {f"d{name}": torch.empty_like(t) for name, t in zip("qkv", (q, k, v))}
    lse = lse.masked_fill(lse.isneginf(), 0.0).contiguous()  # of rows that see nothing
    scale = q.shape[-1] ** -0.5 if call.softmax_scale is None else call.softmax_scale
    left, right = window = tuple(call.window_size)
    if call.release == 4:
        left = right = None  # its functions here have no window
    given = {
        **made, **_bounds_by_name(call), "q": q, "k": k, "v": v, "out": out, "dout": dout,
        "softmax_lse": lse, "lse": lse, "dlse": None if dlse is None else dlse.contiguous(),
        "softmax_scale": scale, "causal": call.causal, "is_causal": call.causal,
        "window_size": window, "window_size_left": left, "window_size_right": right,
        "softcap": call.softcap, "deterministic": call.deterministic, "sm_margin": call.sm_margin,
        "dropout_p": 0.0, "alibi_slopes": None,
    }  # fmt: skip
    known = _parameters(function)
    function(**{name: value for name, value in given.items() if name in known})
    return list(made.values())


def _bounds_by_name(call: Options) -> dict[str, Any]:
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    return {} if call.bounds is None else dict(zip(names, call.bounds))


def _parameters(function: Callable) -> dict[str, inspect.Parameter]:
    """Returns the signature of a function, or of what torch.library.custom_op made of it."""
    return dict(inspect.signature(getattr(function, "_init_fn", function)).parameters)


def _by_rows(lse: torch.Tensor) -> torch.Tensor:
    """[(batch,) heads, rows] -> [rows of all, heads]"""
    return lse.transpose(-1, -2).flatten(0, -2)
