# SPDX-License-Identifier: Apache-2.0
"""Our kernel on one device under band slices, forward and backward apart: the backward takes any
out and lse, as a ring needs it.
"""

from __future__ import annotations

import sys
from array import array

import torch

from magi_attention._native.attention import Options, accumulator_dtype
from magi_attention._native.handles import MaskHandle
from magi_attention._native.library import lib, made
from magi_attention.functional._calls import calls_of
from magi_attention.functional._slices import runner_under

_OPTIONS = Options(is_fast_backward=True)


class Kernel:
    """Attention of q [rows_q, heads_q, dim] over k and v [rows_k, heads_kv, dim]."""

    def __init__(self, slices, rows_q: int, rows_k: int) -> None:
        flat = array("i", [value for piece in slices for value in piece])
        arguments = (flat.tobytes(), len(slices), rows_q, rows_k)
        mask = MaskHandle(made(lib.magi_mask_from_slices, *arguments))
        self.area = mask.area()
        self._calls = calls_of(runner_under(mask))

    def forward(self, q, k, v):
        """out and what the backward needs."""
        out, lse = self.attend(q, k, v)
        return out, (q, k, v, out, lse)

    def attend(self, q, k, v):
        """out and lse [rows_q, heads_q]."""
        out, lse, _ = self._calls.find(q, k, v, None, _OPTIONS).forward(q, k, v, None)
        return out, lse

    def backward(self, dout, saved):
        """dq, dk, dv; saved: q, k, v, out, lse, of which the last two may be of more keys."""
        q, k, v, out, lse = saved
        call = self._calls.find(q, k, v, None, _OPTIONS)
        return call.backward(dout, None, q, k, v, out, lse, None)[:3]


def merge(out, lse, part, part_lse) -> None:
    """Adds attention over more keys, part and part_lse, to out and lse of the wide type. A row of
    part that sees nothing has lse -inf.
    """
    top = torch.maximum(lse, part_lse)
    top = torch.where(top.isneginf(), torch.zeros_like(top), top)
    old, new = torch.exp(lse - top), torch.exp(part_lse - top)
    total = old + new
    share = torch.where(total > 0, new / total, torch.zeros_like(total)).unsqueeze(-1)
    out.add_((part - out) * share)
    lse.copy_(top + torch.log(total))


_merges: dict[str, object] = {}


def merge_on(device: torch.device):
    """merge, in one kernel on a GPU where torch can compile it."""
    if device.type not in _merges:
        _merges[device.type] = merge if device.type == "cpu" else _compiled(device)
    return _merges[device.type]


def _compiled(device: torch.device):
    compiled = torch.compile(merge, dynamic=True)
    out, lse = torch.zeros(8, 4, 16, device=device), torch.zeros(8, 4, device=device)
    try:
        compiled(out[2:], lse[2:], out[2:].bfloat16(), lse[2:].clone())
    except Exception as error:  # no compiler on this machine: the ring is slower, not wrong
        print(f"merge is not compiled: {str(error).splitlines()[0]}", file=sys.stderr)
        return merge
    return compiled


__all__ = ["Kernel", "accumulator_dtype", "merge", "merge_on"]
