# SPDX-License-Identifier: Apache-2.0
"""Formulas of partial softmax results, in plain torch. out is [rows, heads, dim], lse
[rows, heads]; -inf in lse means that a row saw no key.
"""

from __future__ import annotations

import torch

from magi_attention.common._arguments import as_bool, check_kind


def safe_subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a - b, with -inf - (-inf) = -inf."""
    return torch.where(a.isneginf() & b.isneginf(), a, a - b)


def safe_lse(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> torch.Tensor:
    """logsumexp, -inf for rows of -inf, with a gradient of 0 there."""
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(top.isinf(), 0.0, top)
    total = torch.exp(x - top).sum(dim, keepdim=True)
    lse = torch.where(total > 0, torch.log(torch.where(total > 0, total, 1.0)) + top, -torch.inf)
    return lse if keepdim else lse.squeeze(dim)


def safe_softmax(x: torch.Tensor, lse: torch.Tensor | None = None, dim: int = -1) -> torch.Tensor:
    """softmax, 0 for rows of -inf. lse has the axis `dim` of length 1."""
    lse = safe_lse(x, dim, keepdim=True) if lse is None else lse
    return torch.exp(x - torch.where(lse.isinf(), 0.0, lse)) * ~lse.isneginf()


def softmax_bwd(dout: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Gradient of softmax over the last axis."""
    return out * (dout - (dout * out).sum(-1, keepdim=True))


def calc_lse_rescale_weight(
    lse_to_rescale: torch.Tensor, rescaled_lse: torch.Tensor
) -> torch.Tensor:
    """Returns the factor of out [rows, heads, dim], [rows, heads, 1]; 0 where it saw no key."""
    return torch.exp(safe_subtract(lse_to_rescale, rescaled_lse)).unsqueeze(-1)


def check_layout(sink_layout: str) -> None:
    """NotImplementedError for "shd", ValueError for what is no layout."""
    if sink_layout == "shd":
        raise NotImplementedError('sink_layout="shd" is not available; use "sh" or "ssh"')
    if sink_layout not in ("sh", "ssh"):
        raise ValueError(f'sink_layout is {sink_layout!r}; allowed: "sh", "ssh"')


def calc_lse_sink(sink: torch.Tensor, seqlen_q: int, sink_layout: str = "sh") -> torch.Tensor:
    """logsumexp of the sink per row and head, [seqlen_q, heads]."""
    check_layout(sink_layout)
    if sink_layout == "sh":
        return safe_lse(sink, 0).expand(seqlen_q, -1)
    return safe_lse(sink, 1)


def sink_bwd(
    sink: torch.Tensor,
    lse: torch.Tensor,
    o: torch.Tensor,
    do: torch.Tensor,
    sink_layout: str = "sh",
    dsink: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient of the sink, from the final lse and o; written into dsink where one is given."""
    check_layout(sink_layout)
    delta = (o.to(lse.dtype) * do.to(lse.dtype)).sum(-1).unsqueeze(1)
    rows = sink.unsqueeze(0) if sink_layout == "sh" else sink
    gradient = -torch.exp(safe_subtract(rows, lse.unsqueeze(1))) * delta
    gradient = (gradient.sum(0) if sink_layout == "sh" else gradient).to(sink.dtype)
    return gradient if dsink is None else dsink.copy_(gradient)


def _check_tensors(**tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        check_kind(name, tensor, torch.Tensor, "a torch.Tensor")


def correct_attn_lse(lse1: torch.Tensor, lse2: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """lse of both key sets together; with inplace in the memory of lse1."""
    _check_tensors(lse1=lse1, lse2=lse2)
    wide = torch.promote_types(lse1.dtype, torch.float32)
    merged = torch.logaddexp(lse1.to(wide), lse2.to(wide)).to(lse1.dtype)
    return lse1.copy_(merged) if as_bool("inplace", inplace) else merged


def correct_attn_out(
    out1: torch.Tensor,
    lse1: torch.Tensor,
    out2: torch.Tensor,
    lse2: torch.Tensor,
    lse: torch.Tensor,
    inplace: bool = False,
) -> torch.Tensor:
    """out of both key sets together, from their merged lse; with inplace in the memory of out1."""
    _check_tensors(out1=out1, lse1=lse1, out2=out2, lse2=lse2, lse=lse)
    weight1, weight2 = calc_lse_rescale_weight(lse1, lse), calc_lse_rescale_weight(lse2, lse)
    merged = (out1 * weight1 + out2 * weight2).to(out1.dtype)
    return out1.copy_(merged) if as_bool("inplace", inplace) else merged


def correct_attn_out_lse(
    out1: torch.Tensor,
    lse1: torch.Tensor,
    out2: torch.Tensor,
    lse2: torch.Tensor,
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of both key sets together."""
    lse = correct_attn_lse(lse1, lse2)
    out = correct_attn_out(out1, lse1, out2, lse2, lse, inplace)
    return out, lse1.copy_(lse) if inplace else lse


def correct_attn_lse_with_sink(
    lse: torch.Tensor, sink: torch.Tensor, sink_layout: str = "sh", inplace: bool = False
) -> torch.Tensor:
    """lse with the sink in the denominator."""
    _check_tensors(lse=lse, sink=sink)
    return correct_attn_lse(lse, calc_lse_sink(sink, lse.shape[0], sink_layout), inplace)


def correct_attn_out_with_sink(
    out: torch.Tensor,
    lse: torch.Tensor,
    sink: torch.Tensor,
    sink_layout: str = "sh",
    inplace: bool = False,
) -> torch.Tensor:
    """out with the sink in the denominator; lse is that without it."""
    _check_tensors(out=out, lse=lse, sink=sink)
    final = correct_attn_lse_with_sink(lse, sink, sink_layout)
    corrected = (out * calc_lse_rescale_weight(lse, final)).to(out.dtype)
    return out.copy_(corrected) if as_bool("inplace", inplace) else corrected


def correct_attn_out_lse_with_sink(
    out: torch.Tensor,
    lse: torch.Tensor,
    sink: torch.Tensor,
    sink_layout: str = "sh",
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) with the sink in the denominator."""
    corrected = correct_attn_out_with_sink(out, lse, sink, sink_layout, inplace)
    return corrected, correct_attn_lse_with_sink(lse, sink, sink_layout, inplace)
