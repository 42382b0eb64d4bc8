# SPDX-License-Identifier: Apache-2.0
"""kv heads folded into rows: row h * rows + i of the folded tensors is row i for kv head h, so that
one mask of ranges says of each kv head for itself who sees what. K and V are copied unless there is
one kv head.
"""

from __future__ import annotations

import torch


def fold_queries(x: torch.Tensor, heads_kv: int) -> torch.Tensor:
    """[rows, heads_q, ...] -> [heads_kv * rows, heads_q / heads_kv, ...]."""
    rows, heads = x.shape[:2]
    apart = x.unflatten(1, (heads_kv, heads // heads_kv)).transpose(0, 1)
    return apart.reshape(heads_kv * rows, heads // heads_kv, *x.shape[2:])


def unfold_queries(x: torch.Tensor, heads_kv: int) -> torch.Tensor:
    """The reverse of fold_queries."""
    return x.unflatten(0, (heads_kv, x.shape[0] // heads_kv)).transpose(0, 1).flatten(1, 2)


def fold_keys(x: torch.Tensor) -> torch.Tensor:
    """[rows, heads_kv, dim] -> [heads_kv * rows, 1, dim]."""
    return x.transpose(0, 1).reshape(-1, 1, x.shape[2])


def fold_sink(
    sink: torch.Tensor | None, sink_layout: str, rows: int, heads_kv: int
) -> tuple[torch.Tensor | None, str]:
    """A sink in either layout for folded queries: one for each row where there are several heads,
    [heads_kv * rows, sinks, heads_q / heads_kv].
    """
    if sink is None:
        return sink, sink_layout
    if sink_layout == "sh":
        sink = sink.unsqueeze(0).expand(rows, -1, -1)
    return fold_queries(sink.transpose(1, 2), heads_kv).transpose(1, 2), "ssh"
