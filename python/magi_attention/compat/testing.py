# SPDX-License-Identifier: Apache-2.0
"""Dense attention without the library, to compare results with."""

from __future__ import annotations

import torch

from magi_attention.common._arguments import as_bool, check_kind
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.functional.utils import safe_lse, safe_softmax

_BACKENDS = ("sdpa", "torch")


def ref_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    *,
    sink: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    layout: str = "thd",
    sink_layout: str = "sh",
    backend: str = "sdpa",
    high_precision: bool = False,
    return_lse: bool = False,
    return_max_logits: bool = False,
    online_softmax: bool = False,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """Attention of q [rows_q, heads_q, dim] over k, v [rows_k, heads_kv, dim] where mask, bool
    [rows_q, rows_k], is True, with gradients through out and lse. high_precision: in float64, else
    in the type of q with sums in float32 at least. sink: [sinks, heads_q] ("sh") or [rows_q, sinks,
    heads_q] ("ssh").

    Returns out in q's type and a meta with lse [rows_q, heads_q] (None unless return_lse) and
    max_logits [heads_q] (None unless return_max_logits), before softcap. Rows without keys give
    out 0 and lse -inf. backend ("sdpa", "torch") and online_softmax name the original's ways of
    computing the same values; there is one here. ValueError for another layout or backend.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v), ("mask", mask)):
        check_kind(name, tensor, torch.Tensor, "a torch.Tensor")
    for name, value, allowed in (
        ("layout", layout, ("thd",)),
        ("sink_layout", sink_layout, ("sh", "ssh")),
        ("backend", backend, _BACKENDS),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")
    high_precision = as_bool("high_precision", high_precision)
    return_lse = as_bool("return_lse", return_lse)
    return_max_logits = as_bool("return_max_logits", return_max_logits)
    wide = torch.float64 if high_precision else torch.promote_types(q.dtype, torch.float32)
    narrow = torch.float64 if high_precision else q.dtype
    group = q.shape[1] // k.shape[1]
    queries = q.to(narrow).transpose(0, 1)  # [heads, rows, dim]
    keys, values = (x.to(narrow).repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    scores = (queries @ keys.transpose(1, 2)).to(wide) * scale
    hidden = ~mask.bool()
    max_logits = scores.detach().masked_fill(hidden, -torch.inf).amax((1, 2))
    if softcap > 0.0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(hidden, -torch.inf)
    num_keys = scores.shape[2]
    if sink is not None:
        scores = torch.cat((scores, _sink_columns(sink.to(wide), sink_layout, len(q))), 2)
    lse = safe_lse(scores, -1, keepdim=True)
    weights = safe_softmax(scores, lse)[..., :num_keys].to(narrow)
    out = (weights @ values).transpose(0, 1).to(q.dtype)
    return out, AttnForwardMeta(
        lse.squeeze(-1).transpose(0, 1).contiguous() if return_lse else None,
        max_logits if return_max_logits else None,
    )


def _sink_columns(sink: torch.Tensor, sink_layout: str, rows: int) -> torch.Tensor:
    """[heads, rows, sinks]"""
    if sink_layout == "sh":
        return sink.transpose(0, 1)[:, None].expand(-1, rows, -1)
    return sink.permute(2, 0, 1)


__all__ = ["ref_attn_func"]
