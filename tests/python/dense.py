# SPDX-License-Identifier: Apache-2.0
"""Dense float64 attention by definition, differentiable by torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from magi_attention.common import AttnMaskType, AttnRanges


@dataclass
class Mask:
    """Slices: q ranges, k ranges, types as numbers (0 full, 1 causal, 2 inverse, 3 both)."""

    q_ranges: list[tuple[int, int]]
    k_ranges: list[tuple[int, int]]
    types: list[int]
    rows_q: int
    rows_k: int

    def ranges(self):
        """What functions of plans and keys take: q_ranges, k_ranges and attn_mask_type."""
        q, k = (AttnRanges.from_ranges(ranges) for ranges in (self.q_ranges, self.k_ranges))
        return q, k, [AttnMaskType.from_int_type(kind) for kind in self.types]

    def multiplicity(self) -> torch.Tensor:
        """How many slices show each pair, [rows_q, rows_k]."""
        counts = torch.zeros(self.rows_q, self.rows_k, dtype=torch.float64)
        diagonal = torch.arange(self.rows_k)[None, :] - torch.arange(self.rows_q)[:, None]
        for (q0, q1), (k0, k1), kind in zip(self.q_ranges, self.k_ranges, self.types):
            band = diagonal[q0:q1, k0:k1]
            seen = torch.ones_like(band, dtype=torch.bool)
            if kind & 1:
                seen &= band <= k1 - q1
            if kind & 2:
                seen &= band >= k0 - q0
            counts[q0:q1, k0:k1] += seen
        return counts


def attention(q, k, v, mask: Mask | torch.Tensor, sink=None, scale=None, softcap=0.0):
    """out, lse, max_logits; mask: or how often each pair is seen, [rows, keys] or of each head;
    sink [sinks, heads] or [rows, sinks, heads].
    """
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scale = 1 / math.sqrt(q.shape[2]) if scale is None else scale
    raw = torch.einsum("qhd,khd->hqk", q, k) * scale
    counts = mask if isinstance(mask, torch.Tensor) else mask.multiplicity()
    logits = softcap * torch.tanh(raw / softcap) if softcap else raw
    logits = logits + counts.log()
    if sink is not None:
        rows = sink if sink.dim() == 3 else sink.expand(q.shape[0], *sink.shape)
        logits = torch.cat((logits, rows.permute(2, 0, 1)), -1)
    # Rows that see nothing: their gradient is 0, where torch's logsumexp gives NaN.
    is_blind = logits.isneginf().all(-1)
    lse = torch.logsumexp(logits.masked_fill(is_blind.unsqueeze(-1), 0.0), -1)
    weights = torch.exp(logits - lse.unsqueeze(-1))
    lse = lse.masked_fill(is_blind, -math.inf)
    out = torch.einsum("hqk,khd->qhd", weights[..., : k.shape[0]], v)
    max_logits = raw.masked_fill(counts == 0, -math.inf).amax((1, 2))
    return out, lse.T, max_logits


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def close(found: dict, wanted: dict, allowed: float = 1e-5) -> None:
    """Tensors by name; allowed: of the largest value, or of 1."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        error = (found[name] - tensor).abs().max().item()
        assert error <= allowed * max(1.0, tensor.abs().max().item()), f"{name}: {error:.3g}"


def backward(tensors, visible, scale, softcap=0.0, dlse=None):
    """dq, dk, dv as kernels make them, from the out and lse that they are given; tensors: q, k, v,
    out, dout [rows, heads, dim] and lse [heads, rows].
    """
    q, k, v, out, dout, lse = (tensor.double() for tensor in tensors)
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scores, slope = torch.einsum("qhd,khd->hqk", q, k) * scale, scale
    if softcap:
        capped = torch.tanh(scores / softcap)
        scores, slope = softcap * capped, scale * (1 - capped.square())
    weights = torch.exp(scores.masked_fill(~visible, -math.inf) - lse.unsqueeze(-1))
    drop = (dout * out).sum(-1).T - (0.0 if dlse is None else dlse.double())
    dweights = torch.einsum("qhd,khd->hqk", dout, v)
    dscores = weights * (dweights - drop.unsqueeze(-1)) * slope
    dq = torch.einsum("hqk,khd->qhd", dscores, k)
    dk, dv = (
        torch.einsum("hqk,qhd->khd", *pair).unflatten(1, (kv_heads, group)).sum(2)
        for pair in ((dscores, q), (weights, dout))
    )
    return dq, dk, dv


def window(rows: int, keys: int, causal: bool, sides=(None, None)) -> torch.Tensor:
    """The pairs that flash-attn shows, from the bottom right; sides: left and right, where None
    and -1 are no bound.
    """
    left, right = (-1 if side is None else side for side in sides)
    right = 0 if causal else right
    seen = torch.ones(rows, keys, dtype=torch.bool)
    seen = seen.triu(keys - rows - left) if left >= 0 else seen
    return seen.tril(keys - rows + right) if right >= 0 else seen


def masks(rows: int) -> dict[str, Mask]:
    """The kinds of masks of packed and long-context training, over `rows` rows."""
    a, b, c = rows // 5, rows // 2, rows - rows // 4
    documents = [(0, a), (a, b), (b, c), (c, rows)]

    def square(q_ranges, k_ranges, types):
        return Mask(q_ranges, k_ranges, types, rows, rows)

    def one_type(q_ranges, k_ranges, kind):
        return square(q_ranges, k_ranges, [kind] * len(q_ranges))

    block = [(0, a), (0, b), (b, c), (b, rows)]
    small = [(i, min(i + 7, rows)) for i in range(0, rows, 7)]
    return {
        "full": one_type([(0, rows)], [(0, rows)], 0),
        "causal": one_type([(0, rows)], [(0, rows)], 1),
        "varlen_full": one_type(documents, documents, 0),
        "varlen_causal": one_type(documents, documents, 1),
        "varlen_block_causal": one_type(documents, block, 0),
        "block_causal_q_overlap": one_type(
            [(0, a), (a, c), (b, c), (c, rows)], [(0, a), (0, b), (b, c), (0, rows)], 0
        ),
        "bi_causal_q_overlap": square(
            [(0, b), (a, c), (c, rows)], [(0, c), (c, rows), (0, rows)], [3, 3, 3]
        ),
        "four_types": square(documents, [(0, b), (a, c), (0, rows), (b, rows)], [0, 1, 2, 3]),
        "small_pieces": one_type(small, small, 1),
        "prefix": square([(0, rows), (a, rows)], [(0, a), (a, rows)], [0, 1]),
        "empty_rows": one_type([(a, b)], [(0, a)], 1),
        "nothing": one_type([(0, a)], [(0, 0)], 0),
    }
