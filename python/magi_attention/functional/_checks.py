# SPDX-License-Identifier: Apache-2.0
"""Checks of attention arguments; messages name the argument, its value and what is allowed."""

from __future__ import annotations

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
MAX_SINKS = 8
_INFINITY = float("inf")


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of lse, max_logits and sink."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_kind(name: str, tensor: torch.Tensor, axes: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; allowed: a torch.Tensor")
    if tensor.device.type != "cpu":
        raise RuntimeError(
            f"{name} is on {tensor.device}; allowed: cpu, as this build holds no GPU kernels"
        )
    if tensor.dim() != 3:
        raise ValueError(f"{name} has {tensor.dim()} axes; allowed: 3, {axes}")
    if tensor.stride(2) != 1 and tensor.shape[2] > 1:
        raise ValueError(f"{name} has stride {tensor.stride(2)} in its last axis; allowed: 1")


def check_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Type, device, layout and head counts of q [rows, heads_q, dim] and k, v."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_kind(name, tensor, "[rows, heads, head_dim]")
    if q.dtype not in DTYPES:
        raise TypeError(f"q.dtype is {q.dtype}; allowed: bfloat16, float16, float32, float64")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name}.dtype is {tensor.dtype}; allowed: {q.dtype}, that of q")
    if k.shape[0] != v.shape[0]:
        raise ValueError(f"v has {v.shape[0]} rows; allowed: {k.shape[0]}, those of k")
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"v has {v.shape[1]} heads; allowed: {k.shape[1]}, those of k")
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"k has head_dim {k.shape[2]}; allowed: {q.shape[2]}, that of q")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"q has {q.shape[1]} heads; allowed: a multiple of k's {k.shape[1]}")


def check_params(softmax_scale: float | None, softcap: float) -> float:
    """The scale to pass on, 0 for the default 1 / sqrt(head_dim)."""
    # Comparisons, which a compiler can trace for symbolic floats; NaN fails them.
    if softmax_scale is not None and not 0.0 < abs(softmax_scale) < _INFINITY:
        raise ValueError(f"softmax_scale is {softmax_scale}; allowed: finite and not 0, or None")
    if not 0.0 <= softcap < _INFINITY:
        raise ValueError(f"softcap is {softcap}; allowed: 0 (off) or a positive number")
    return 0.0 if softmax_scale is None else softmax_scale


def check_sink(
    sink: torch.Tensor | None, sink_layout: str, q: torch.Tensor
) -> tuple[torch.Tensor | None, int]:
    """The sink in the type it is computed in, and the number of its layout."""
    if sink_layout == "shd":
        raise NotImplementedError('sink_layout="shd" is not available; use "sh" or "ssh"')
    if sink_layout not in ("sh", "ssh"):
        raise ValueError(f'sink_layout is {sink_layout!r}; allowed: "sh", "ssh"')
    layout = ("sh", "ssh").index(sink_layout)
    if sink is None:
        return None, layout
    if not isinstance(sink, torch.Tensor):
        raise TypeError(f"sink is a {type(sink).__name__}; allowed: a torch.Tensor or None")
    if sink.device != q.device:
        raise ValueError(f"sink is on {sink.device}; allowed: {q.device}, the device of q")
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
        raise ValueError(f"sink has shape {list(sink.shape)}; allowed: [{wanted}]")
    return sink.to(accumulator_dtype(q.dtype)).contiguous(), layout
