# SPDX-License-Identifier: Apache-2.0
"""Tensors in the form that the library moves rows in, and back."""

from __future__ import annotations

import torch

from magi_attention._native.attention import DTYPE_CODES


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """[rows, elements], contiguous."""
    if x.device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"x is on {x.device}; allowed: cpu, cuda")
    return x.contiguous().view(x.shape[0], x.shape[1:].numel())


def as_moved(x: torch.Tensor) -> torch.Tensor:
    """as_rows in a type that the library moves: of others the bytes, filled up to int64, so that
    every value survives.
    """
    flat = as_rows(x.resolve_neg().resolve_conj())
    if flat.dtype in DTYPE_CODES:
        return flat
    row_bytes = flat.view(torch.uint8)
    return torch.nn.functional.pad(row_bytes, (0, -row_bytes.shape[1] % 8)).view(torch.int64)


def as_given(moved: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    """`rows` rows of as_moved in the type and shape of those of x."""
    shape = (rows, *x.shape[1:])
    if moved.dtype == x.dtype:
        return moved.view(shape)
    num_bytes = x.shape[1:].numel() * x.itemsize
    return moved.view(torch.uint8)[:, :num_bytes].contiguous().view(x.dtype).view(shape)


def as_no_view(x: torch.Tensor) -> torch.Tensor:
    """x in its memory. Autograd refuses to change in place the views that its functions return."""
    return x.new_empty(0).set_(x)


def in_words(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Tensors of one type as int64, if all hold whole words along the last axis, else as they are:
    for what copies, where an element takes a GPU as long whatever its size. Without gradients.
    """
    places = [n for x in tensors for n in (*x.stride()[:-1], x.shape[-1], x.storage_offset())]
    are_words = all(n * tensors[0].itemsize % 8 == 0 for n in places)
    are_words = are_words and all(x.stride(-1) == 1 and not x.is_neg() for x in tensors)
    return [x.view(torch.int64) if are_words else x for x in tensors]


def joined(*tensors: torch.Tensor) -> torch.Tensor:
    """torch.cat along the last axis, without gradients."""
    return torch.cat(in_words(*tensors), -1).view(tensors[0].dtype)
