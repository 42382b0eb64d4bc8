# SPDX-License-Identifier: Apache-2.0
"""Recurrences over batches of runs in plain torch, by chunks of rows, each with the state that a
run starts from and the one that it ends with.

Inputs are [runs, rows, ...]; rows after the end of a run hold zeros, which leave states as they
are. All is computed in the inputs' own type: callers widen it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_CHUNK = 64  # rows; exact for any, a compromise between small products and few steps
_NARROW_CHUNK = 16  # where each pair of rows of a chunk has a decay for each channel


def chunks_of(x: torch.Tensor, size: int) -> torch.Tensor:
    """[runs, rows, ...] -> [runs, chunks, size, ...], zeros after the last row."""
    missing = -x.shape[1] % size
    padded = F.pad(x, (*(0, 0) * (x.dim() - 2), 0, missing))
    return padded.unflatten(1, (-1, size))


def _decays(log_decay: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[..., size, n] of a chunk -> decay from the chunk's begin to after each row [..., size, n],
    from after each row to the end, and from after row j to after row i [..., i, j, n], 0 for j > i.
    Differences are taken before exp, so that nothing overflows.
    """
    total = log_decay.cumsum(-2)
    between = total.unsqueeze(-2) - total.unsqueeze(-3)
    size = log_decay.shape[-2]
    later = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).triu(1)
    between = between.masked_fill(later.unsqueeze(-1), -torch.inf).exp()
    return total.exp(), (total[..., -1:, :] - total).exp(), between


def scan_scalar(q, k, v, log_decay, state):
    """S = exp(log_decay) S + k v^T; out = S^T q. q, k [runs, rows, heads, dim_k], v [..., dim_v],
    log_decay [runs, rows, heads], state [runs, heads, dim_k, dim_v] -> out like v, last state.
    """
    rows, outs = q.shape[1], []
    q, k, v, log_decay = (chunks_of(x, _CHUNK) for x in (q, k, v, log_decay))
    since, until, between = _decays(log_decay)
    scores = torch.einsum("rcihd,rcjhd->rcijh", q, k) * between
    inside = torch.einsum("rcijh,rcjhe->rcihe", scores, v)
    added = torch.einsum("rcjhd,rcjhe->rchde", k * until.unsqueeze(-1), v)
    for i in range(q.shape[1]):
        read = torch.einsum("rihd,rhde->rihe", q[:, i] * since[:, i].unsqueeze(-1), state)
        outs.append(inside[:, i] + read)
        state = state * since[:, i, -1, :, None, None] + added[:, i]
    return _joined(outs, v, rows), state


def scan_elementwise(log_decay, x, state):
    """h = exp(log_decay) h + x for every channel: both [runs, rows, ...], state [runs, ...] -> h
    after each row, and the last.
    """
    rows, shape, outs = x.shape[1], x.shape[2:], []
    log_decay, x = (chunks_of(y.flatten(2), _NARROW_CHUNK) for y in (log_decay, x))
    since, _, between = _decays(log_decay)
    inside = torch.einsum("rcijn,rcjn->rcin", between, x)
    state = state.flatten(1)
    for i in range(x.shape[1]):
        outs.append(inside[:, i] + since[:, i] * state.unsqueeze(1))
        state = outs[-1][:, -1]
    whole = _joined(outs, x, rows)
    return whole.unflatten(2, shape), state.unflatten(1, shape)


def scan_delta(q, k, v, log_decay, beta, state):
    """S = (I - beta k k^T) diag(exp(log_decay)) S + beta k v^T; out = S^T q. q, k [runs, rows,
    heads, dim_k], v [..., dim_v], log_decay [..., dim_k] or, one for all channels, [..., 1], beta
    [runs, rows, heads], state [runs, heads, dim_k, dim_v] -> out like v, last state.

    The products of a chunk's reflections are made as in Yang et al., "Parallelizing linear
    transformers with the delta rule over sequence length", 2024: one triangular system a chunk.
    """
    rows, outs = q.shape[1], []
    is_narrow = log_decay.shape[-1] > 1
    size = _NARROW_CHUNK if is_narrow else _CHUNK
    q, k, v, log_decay = (chunks_of(x, size).transpose(2, 3) for x in (q, k, v, log_decay))
    beta = chunks_of(beta, size).transpose(2, 3).unsqueeze(-1)
    since, until, between = _decays(log_decay)
    pairs = _weighed_pairs(k, k, between).tril(-1) * beta
    eye = torch.eye(size, dtype=q.dtype, device=q.device)
    # What each row adds to the state is its value less what the state gives for its key.
    right = torch.cat((beta * v, beta * k * since), -1)
    solved = torch.linalg.solve_triangular(eye + pairs, right, upper=False, unitriangular=True)
    values, reads = solved.split((v.shape[-1], k.shape[-1]), -1)
    scores = _weighed_pairs(q, k, between)
    q, k = q * since, k * until
    for i in range(q.shape[1]):
        added = values[:, i] - reads[:, i] @ state
        outs.append((q[:, i] @ state + scores[:, i] @ added).transpose(1, 2))
        state = since[:, i, :, -1].unsqueeze(-1) * state + k[:, i].mT @ added
    return _joined(outs, v.transpose(2, 3), rows), state


def _weighed_pairs(a, b, between):
    """Products of rows i of a and j of b [..., rows, dim], decayed from j to i."""
    if between.shape[-1] == 1:
        return (a @ b.mT) * between.squeeze(-1)
    return torch.einsum("...id,...jd,...ijd->...ij", a, b, between)


def _joined(outs, like, rows: int):
    """Chunks of rows one after the other, without what fills the last one."""
    if not outs:
        return like.new_zeros((like.shape[0], 0, *like.shape[3:]))
    return torch.cat(outs, 1)[:, :rows]
