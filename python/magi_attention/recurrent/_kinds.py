# SPDX-License-Identifier: Apache-2.0
"""The recurrences of this package's layers, in plain torch."""

from __future__ import annotations

import torch

from magi_attention.recurrent._recurrence import Recurrence
from magi_attention.recurrent._scans import scan_delta, scan_elementwise, scan_scalar


class Scalar(Recurrence):
    """S = exp(log_decay) S + k v^T, one decay for each head: q, k, v, log_decay."""

    def zero_state(self, inputs, runs):
        q, k, v, _ = inputs
        return q.new_zeros((runs, *k.shape[2:], v.shape[-1]))

    def scan(self, inputs, state):
        return scan_scalar(*inputs, state)

    def transfer(self, inputs):
        return inputs[3].sum(1).exp()

    def through(self, transfer, state):
        return transfer[..., None, None] * state

    back = through


class Elementwise(Recurrence):
    """h = exp(log_decay) h + x for every channel, and all h are results: log_decay, x."""

    def zero_state(self, inputs, runs):
        return inputs[1].new_zeros((runs, *inputs[1].shape[2:]))

    def scan(self, inputs, state):
        return scan_elementwise(*inputs, state)

    def transfer(self, inputs):
        return inputs[0].sum(1).exp()

    def through(self, transfer, state):
        return transfer * state

    back = through


class Delta(Recurrence):
    """The gated delta rule: q, k, v, log_decay, beta. A is a matrix for each head."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def zero_state(self, inputs, runs):
        _, k, v, *_ = inputs
        return k.new_zeros((runs, v.shape[2], k.shape[-1], v.shape[-1]))

    def scan(self, inputs, state):
        q, k, v, log_decay, beta = inputs
        repeats = v.shape[2] // k.shape[2]
        q, k = (x.repeat_interleave(repeats, 2) for x in (self.scale * q, k))
        return scan_delta(q, k, v, log_decay, beta, state)

    def transfer(self, inputs):
        q, k, v, log_decay, beta = inputs
        eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
        eye = eye.expand(k.shape[0], v.shape[2], -1, -1)
        zeros = k.new_zeros((*v.shape[:3], k.shape[-1]))
        return self.scan((q, k, zeros, log_decay, beta), eye)[1]

    def through(self, transfer, state):
        return transfer @ state

    def back(self, transfer, gradient):
        return transfer.mT @ gradient
