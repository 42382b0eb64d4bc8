# SPDX-License-Identifier: Apache-2.0
"""Attention of any type and head dim by torch's matrix products, over dense blocks of rows: what
MAGI_ATTENTION_KERNEL_BACKEND=sdpa stands for. For float32 and float64 on GPUs, and to check other
kernels with; memory grows with the number of keys and time with all pairs, hidden ones too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from magi_attention._native.attention import accumulator_dtype
from magi_attention.backends import _registry as backends

NAME = "torch"
_BLOCK_ELEMENTS = 1 << 24  # of the scores of one block of rows


class DenseBlocks:
    """The mask of a problem, as dense blocks of rows that are made when they are used."""

    def __init__(self, problem: backends.Problem) -> None:
        self._slices = problem.slices.tolist()
        self._rows, self._keys = problem.q_shape[0], problem.k_shape[0]
        self._device = problem.device
        per_row = max(1, problem.q_shape[1] * self._keys)
        self._height = max(1, min(self._rows, _BLOCK_ELEMENTS // per_row))

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and the number of slices that show each of their pairs, [rows, keys]."""
        for begin in range(0, self._rows, self._height):
            end = min(begin + self._height, self._rows)
            counts = torch.zeros(end - begin, self._keys, device=self._device)
            for q0, q1, k0, k1, d_min, d_max in self._slices:
                first, last = max(q0, begin), min(q1, end)
                if first >= last or k0 >= k1:
                    continue
                i = torch.arange(first, last, device=self._device)[:, None]
                d = torch.arange(k0, k1, device=self._device)[None, :] - i
                counts[first - begin : last - begin, k0:k1] += (d >= d_min) & (d <= d_max)
            yield slice(begin, end), counts


class _Block:
    """Scores of some rows: [heads_q, rows, keys], in the type they are summed in."""

    def __init__(self, inputs: backends.Inputs, rows: slice, counts: torch.Tensor) -> None:
        self.rows = rows
        self._wide = accumulator_dtype(inputs.q.dtype)
        self._group = inputs.q.shape[1] // inputs.k.shape[1]
        self.q = self.of_heads(inputs.q[rows])
        self.k, self.v = self.of_keys(inputs.k), self.of_keys(inputs.v)
        scores = self.q @ self.k.transpose(1, 2) * inputs.softmax_scale
        self.visible = counts > 0
        self.raw, self.slope = scores, None
        if inputs.softcap > 0.0:
            capped = torch.tanh(scores / inputs.softcap)
            self.slope = 1.0 - capped * capped
            scores = capped * inputs.softcap
        self.scores = scores + counts.to(self._wide).log()

    def of_heads(self, tensor: torch.Tensor) -> torch.Tensor:
        """[rows, heads, ...] -> [heads, rows, ...] in the wide type."""
        return tensor.to(self._wide).transpose(0, 1)

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """of_heads with every head as often as heads of q read it."""
        return self.of_heads(tensor).repeat_interleave(self._group, 0)

    def per_key_head(self, gradient: torch.Tensor) -> torch.Tensor:
        """[heads_q, keys, dim] -> [keys, heads_kv, dim], summed."""
        return gradient.unflatten(0, (-1, self._group)).sum(1).transpose(0, 1)


def _shares(columns: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """exp(column - lse), 0 in rows whose columns are all -inf; lse [heads, rows]."""
    return torch.exp(columns - lse.masked_fill(lse.isneginf(), 0.0).unsqueeze(-1))


def _sink_columns(inputs: backends.Inputs, block: _Block) -> torch.Tensor | None:
    """[heads, rows, sinks]"""
    if inputs.sink is None:
        return None
    sink = inputs.sink
    if inputs.sink_layout:
        return block.of_heads(sink[block.rows].transpose(1, 2))
    rows = block.rows.stop - block.rows.start
    return block.of_heads(sink)[:, None].expand(-1, rows, -1)


def forward(mask: DenseBlocks, inputs: backends.Inputs, result: backends.Result) -> None:
    """The library's forward of a supplied backend (magi_attention.backends.register)."""
    if result.max_logits is not None:
        result.max_logits.fill_(-torch.inf)
    for rows, counts in mask.blocks():
        block = _Block(inputs, rows, counts)
        sinks = _sink_columns(inputs, block)
        columns = block.scores if sinks is None else torch.cat((block.scores, sinks), -1)
        lse = columns.new_full(columns.shape[:2], -torch.inf)
        if columns.shape[2]:
            lse = torch.logsumexp(columns, -1)
        result.out[rows] = (
            (_shares(block.scores, lse) @ block.v).transpose(0, 1).to(result.out.dtype)
        )
        result.lse[rows] = lse.transpose(0, 1).to(result.lse.dtype)
        if result.max_logits is not None and block.raw.shape[2]:
            top = block.raw.masked_fill(~block.visible, -torch.inf).amax((1, 2))
            torch.maximum(result.max_logits, top.to(result.max_logits.dtype), out=result.max_logits)


def backward(
    mask: DenseBlocks,
    inputs: backends.Inputs,
    result: backends.Result,
    gradients: backends.Gradients,
) -> None:
    """The library's backward of a supplied backend (magi_attention.backends.register)."""
    wide = accumulator_dtype(inputs.q.dtype)
    dk = torch.zeros(inputs.k.shape, dtype=wide, device=inputs.k.device)
    dv = torch.zeros(inputs.v.shape, dtype=wide, device=inputs.v.device)
    dsink = None if gradients.dsink is None else torch.zeros_like(gradients.dsink, dtype=wide)
    for rows, counts in mask.blocks():
        block = _Block(inputs, rows, counts)
        lse, dout = block.of_heads(result.lse[rows]), block.of_heads(gradients.dout[rows])
        delta = (dout * block.of_heads(result.out[rows])).sum(-1)
        if gradients.dlse is not None:
            delta -= block.of_heads(gradients.dlse[rows])
        weights = _shares(block.scores, lse)
        dv += block.per_key_head(weights.transpose(1, 2) @ dout)
        dscores = weights * (dout @ block.v.transpose(1, 2) - delta.unsqueeze(-1))
        if block.slope is not None:
            dscores *= block.slope
        dscores *= inputs.softmax_scale
        gradients.dq[rows] = (dscores @ block.k).transpose(0, 1).to(gradients.dq.dtype)
        dk += block.per_key_head(dscores.transpose(1, 2) @ block.q)
        if dsink is not None:
            shares = _shares(_sink_columns(inputs, block), lse)
            part = -(shares * delta.unsqueeze(-1))  # [heads, rows, sinks]
            if inputs.sink_layout:
                dsink[rows] = part.permute(1, 2, 0)
            else:
                dsink += part.sum(1).transpose(0, 1)
    gradients.dk.copy_(dk)
    gradients.dv.copy_(dv)
    if dsink is not None:
        gradients.dsink.copy_(dsink)


def register() -> None:
    """Adds the backend to the process."""
    limits = backends.Limits(
        has_float_outputs=True, has_sink=True, has_softcap=True, has_max_logits=True,
        has_dlse=True, has_any_scale=True,
    )  # fmt: skip
    backends.register(NAME, forward, backward, limits, DenseBlocks)
