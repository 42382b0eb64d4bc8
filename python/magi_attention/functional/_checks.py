# SPDX-License-Identifier: Apache-2.0
"""Checks of attention arguments; messages name the argument, its value and what is allowed."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch

from magi_attention._native.attention import accumulator_dtype
from magi_attention._native.backend import Limits, known_limits
from magi_attention._native.tensors import as_plain, is_intercepted, refuse_transforms
from magi_attention.backends._registry import MMA
from magi_attention.common._arguments import check_int, check_number
from magi_attention.env.build import has_gpu_kernels
from magi_attention.functional.utils import check_layout

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
MAX_SINKS = 8
# The least and the greatest magnitude of scale, softcap and their quotient: products of scores with
# them are numbers of the type that scores are computed in.
_EXTREMES_FLOAT64 = sys.float_info.min, sys.float_info.max
_EXTREMES_FLOAT32 = 1e-30, 1e30
_MAX_SINK = 1e30 * (1 + 2.0**-20)  # 1e30 in every type
_MAX_SM_MARGIN = 1 << 20  # more than any GPU has
_ROWS_FIRST = "try: x.transpose(0, 1) of tensors [heads, rows, head_dim]"
_RANGES = "[n, 2]; try: masks.from_cu_seqlens(bounds).tensors()"
_TYPES = "[n]; try: 0 for each full range, 1 for a causal one"
_DEVICES = ("cpu", "cuda") if has_gpu_kernels() else ("cpu",)


def _as_rows_of_heads(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; allowed: a torch.Tensor")
    if tensor.device.type not in _DEVICES:
        allowed = ", ".join(_DEVICES) if len(_DEVICES) > 1 else "cpu, as there are no GPU kernels"
        raise RuntimeError(f"{name} is on {tensor.device}; allowed: {allowed}")
    tensor = as_plain(name, tensor)
    if tensor.dim() != 3:
        raise ValueError(
            f"{name}.rank is {tensor.dim()}; allowed: 3, [rows, heads, head_dim]; try: "
            f"{name}.flatten(0, 1) of [batch, rows, heads, head_dim], samples as documents"
        )
    if tensor.stride(2) != 1 and tensor.shape[2] > 1:
        raise ValueError(f"{name}.stride[2] is {tensor.stride(2)}; allowed: 1")
    return tensor


def check_shape(name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    """ValueError that names the tensor, unless it has this shape."""
    if list(tensor.shape) != list(shape):
        raise ValueError(f"{name}.shape is {list(tensor.shape)}; allowed: {list(shape)}")


def check_type(name: str, tensor: torch.Tensor, dtype: torch.dtype, allowed: str) -> None:
    """TypeError unless tensor is one of this type, in words `allowed`."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; allowed: {allowed}")
    if tensor.dtype != dtype:
        names = str(dtype).removeprefix("torch.")
        is_shown = allowed and torch.bool not in (dtype, tensor.dtype)  # bools are no lists
        step = f"; try: {name}.to(torch.{names})" if is_shown else ""
        raise TypeError(f"{name}.dtype is {tensor.dtype}; allowed: {names}{step}")


def check_place(name: str, tensor: torch.Tensor, device: torch.device, whose: str = "q") -> None:
    """ValueError unless the tensor is on the device, which is that of `whose`."""
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; allowed: {device}, that of {whose}")


def _check_kind(name: str, tensor: torch.Tensor, limits: Limits) -> None:
    """Returns what a backend takes on the tensor's GPU: types, head dims, strides of rows and
    heads.
    """
    if tensor.dtype not in limits.dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in reversed(limits.dtypes))
        raise TypeError(f"{name}.dtype is {tensor.dtype} on {tensor.device}; allowed: {names}")
    dim = tensor.shape[2]
    least, most, multiple = limits.head_dim_v if name == "v" else limits.head_dim_qk
    if dim % multiple != 0 or not least <= dim <= most:
        raise ValueError(
            f"{name}.shape[2] is {dim}; allowed: multiples of {multiple} up to {most} on "
            f"{tensor.device}"
        )
    unit = limits.stride_bytes // math.gcd(limits.stride_bytes, tensor.element_size())
    for axis in (0, 1):
        if tensor.stride(axis) % unit != 0 and tensor.shape[axis] > 1:
            raise ValueError(
                f"{name}.stride[{axis}] is {tensor.stride(axis)}; allowed: multiples of {unit} on "
                f"{tensor.device}"
            )


def check_qkv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    backend: str | None = None,
    under_lists: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [rows, heads_q, dim] and k, v as plain tensors whose type, device, layout and head counts
    fit each other and, on a GPU, the backend of this name; None: the library's own, which takes
    wider latents under lists of keys.
    """
    refuse_transforms()
    q, k, v = (_as_rows_of_heads(*named) for named in (("q", q), ("k", k), ("v", v)))
    if q.dtype not in DTYPES:
        raise TypeError(
            f"q.dtype is {q.dtype}; allowed: float64, float32, float16, bfloat16; try: q.float()"
        )
    for name, tensor in (("k", k), ("v", v)):
        check_place(name, tensor, q.device)
        if tensor.dtype != q.dtype:
            raise TypeError(
                f"{name}.dtype is {tensor.dtype}; allowed: {q.dtype}, that of q; "
                f"try: {name}.to(q.dtype)"
            )
    check_shape("k", k, (*k.shape[:2], q.shape[2]))
    check_shape("v", v, (*k.shape[:2], v.shape[2]))
    if k.shape[1] == 0:
        raise ValueError("heads_kv is 0; allowed: 1 or more")
    if q.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"heads_q is {q.shape[1]}; allowed: multiples of heads_kv, {k.shape[1]}; {_ROWS_FIRST}"
        )
    if q.device.type == "cuda":
        limits = known_limits(backend, q.get_device())
        if under_lists:
            limits = limits._replace(head_dim_qk=(8, 576, 8), head_dim_v=(8, 512, 8))
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            _check_kind(name, tensor, limits)
    return q, k, v


def check_sm_margin(sm_margin: int, backend: str | None = None) -> None:
    """ValueError for a number of multiprocessors that no GPU has, NotImplementedError for one that
    a backend which is not the library's own (None, MMA) cannot leave to others.
    """
    if type(sm_margin) is not int or not 0 <= sm_margin <= _MAX_SM_MARGIN:
        check_int("sm_margin", sm_margin, 0, _MAX_SM_MARGIN)
    if sm_margin and backend not in (None, MMA):
        raise NotImplementedError(f"sm_margin is {sm_margin} with backend {backend}; allowed: 0")


def check_params(
    softmax_scale: float | None, softcap: float, dtype: torch.dtype
) -> tuple[float, float]:
    """The scale to pass on, 0 for the default 1 / sqrt(head_dim), and the softcap, as numbers;
    dtype: that of q.
    """
    # Comparisons, which a compiler can trace for symbolic floats; NaN fails them.
    if softmax_scale is not None:
        softmax_scale = _as_number("softmax_scale", softmax_scale)
    softcap = _as_number("softcap", softcap)
    least, most = _EXTREMES_FLOAT64 if dtype == torch.float64 else _EXTREMES_FLOAT32
    if softmax_scale is not None and not least <= abs(softmax_scale) <= most:
        raise ValueError(
            f"softmax_scale is {softmax_scale}; allowed: finite and not 0, of a magnitude from "
            f"{least:g} to {most:g} for {dtype}, or None; try: None, which is 1 / sqrt(head_dim)"
        )
    if softcap != 0.0 and not least <= softcap <= most:
        raise ValueError(
            f"softcap is {softcap}; allowed: 0 (off) or a positive number from {least:g} to "
            f"{most:g} for {dtype}"
        )
    if softmax_scale is not None and softcap != 0.0:
        quotient = abs(softmax_scale) / softcap
        if not least <= quotient <= most:
            raise ValueError(
                f"softmax_scale / softcap is {quotient:g} in magnitude; allowed: {least:g} to "
                f"{most:g} for {dtype}"
            )
    return 0.0 if softmax_scale is None else softmax_scale, softcap


def _as_number(name: str, value: float | torch.Tensor) -> float:
    """Returns the value that a tensor has now: what is kept for later calls is found by numbers."""
    check_number(name, value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise TypeError(f"{name} has shape {list(value.shape)}; allowed: a float")
        if value.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, and attention has none for it; allowed: a float, and "
                "q times a learned number"
            )
    return float(value)


def check_results(
    q: torch.Tensor, v: torch.Tensor, **tensors: torch.Tensor | None
) -> list[torch.Tensor | None]:
    """out, lse and their gradients, by the names dout, dlse, out and lse, as plain tensors without
    gaps of the shapes, types and device that attention of q and v gives; None stays.
    """
    rows, heads = q.shape[:2]
    found = []
    for name, tensor in tensors.items():
        if tensor is None:
            found.append(None)
            continue
        is_lse = name.endswith("lse")
        shape = [rows, heads] if is_lse else [rows, heads, v.shape[2]]
        dtype = accumulator_dtype(q.dtype) if is_lse else q.dtype
        check_shape(name, tensor, shape)
        if tensor.dtype != dtype:
            raise TypeError(f"{name}.dtype is {tensor.dtype}; allowed: {dtype}")
        check_place(name, tensor, q.device)
        found.append(as_plain(name, tensor).contiguous())
    return found


def check_computed_sink(
    sink: torch.Tensor | None, sink_layout: int, q: torch.Tensor
) -> torch.Tensor | None:
    """check_sink by the number of the layout, of a sink in the type that it is computed in."""
    if sink_layout not in (0, 1):
        raise ValueError(f"sink_layout is {sink_layout}; allowed: 0 (sh), 1 (ssh)")
    wide = accumulator_dtype(q.dtype)
    if sink is not None and sink.dtype != wide:
        raise TypeError(f"sink.dtype is {sink.dtype}; allowed: {wide}")
    return check_sink(sink, ("sh", "ssh")[sink_layout], q)[0]


def check_sink(
    sink: torch.Tensor | None, sink_layout: str, q: torch.Tensor
) -> tuple[torch.Tensor | None, int]:
    """The sink in the type it is computed in, and the number of its layout."""
    check_layout(sink_layout)
    layout = ("sh", "ssh").index(sink_layout)
    if sink is None:
        return None, layout
    if not isinstance(sink, torch.Tensor):
        raise TypeError(f"sink is a {type(sink).__name__}; allowed: a torch.Tensor or None")
    if sink.device != q.device:
        raise ValueError(f"sink is on {sink.device}; allowed: {q.device}, the device of q")
    sink = as_plain("sink", sink)
    if not sink.dtype.is_floating_point:
        raise TypeError(f"sink.dtype is {sink.dtype}; allowed: float32")
    lead = (q.shape[0],) if layout else ()
    if (
        sink.dim() != 2 + layout
        or tuple(sink.shape[:layout]) != lead
        or sink.shape[-1] != q.shape[1]
        or not 1 <= sink.shape[-2] <= MAX_SINKS
    ):
        wanted = ", ".join(map(str, (*lead, f"1 to {MAX_SINKS}", q.shape[1])))
        raise ValueError(f"sink.shape is {list(sink.shape)}; allowed: [{wanted}]")
    sink = sink.to(accumulator_dtype(q.dtype)).contiguous()
    if not sink.is_cuda and sink.numel() and not is_intercepted():
        _check_sink_values(sink)
    return sink, layout


def _check_sink_values(sink: torch.Tensor) -> None:
    """Checks them in host memory, where reading waits for nothing. NaN is let through to the
    results.
    """
    greatest = sink.detach().amax().item()
    if greatest > _MAX_SINK:
        raise ValueError(f"sink holds {greatest}; allowed: -inf to {_MAX_SINK:g}")


def check_ranges(
    q: torch.Tensor,
    q_ranges: torch.Tensor | None,
    k_ranges: torch.Tensor | None,
    attn_type_map: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """q_ranges [n, 2], k_ranges [n, 2] and attn_type_map [n] or None as plain tensors whose type,
    device and shape fit each other.
    """
    q_ranges = _as_index_tensor("q_ranges", q_ranges, q, _RANGES)
    k_ranges = _as_index_tensor("k_ranges", k_ranges, q, _RANGES)
    for name, ranges in (("q_ranges", q_ranges), ("k_ranges", k_ranges)):
        if ranges.dim() != 2 or ranges.shape[1] != 2:
            raise ValueError(
                f"{name} has shape {list(ranges.shape)}; allowed: [n, 2]; try: "
                f"masks.from_cu_seqlens({name}).tensors() of bounds of documents"
            )
    check_place("k_ranges", k_ranges, q_ranges.device, "q_ranges")
    if q_ranges.shape[0] != k_ranges.shape[0]:
        raise ValueError(
            f"k_ranges has {k_ranges.shape[0]} rows; allowed: {q_ranges.shape[0]}, as q_ranges"
        )
    if attn_type_map is None:
        return q_ranges, k_ranges, None
    attn_type_map = _as_index_tensor("attn_type_map", attn_type_map, q, _TYPES)
    check_place("attn_type_map", attn_type_map, q_ranges.device, "q_ranges")
    if tuple(attn_type_map.shape) != (q_ranges.shape[0],):
        raise ValueError(
            f"attn_type_map has shape {list(attn_type_map.shape)}; allowed: [{q_ranges.shape[0]}]"
        )
    return q_ranges, k_ranges, attn_type_map


def _as_index_tensor(name: str, tensor: torch.Tensor, q: torch.Tensor, shape: str) -> torch.Tensor:
    check_type(name, tensor, torch.int32, f"an int32 tensor {shape}")
    if tensor.device != q.device and not (q.is_cuda and tensor.device.type == "cpu"):
        allowed = f"{q.device}, the device of q" + (", or cpu" if q.is_cuda else "")
        raise ValueError(f"{name} is on {tensor.device}; allowed: {allowed}")
    return as_plain(name, tensor)
