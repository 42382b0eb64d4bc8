# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and convolutions under any plan: each function takes a bound plan and the rows
of this rank, and gives the rows of this rank. Documents start from a state of zeros, branches of a
prefix tree from the state at the end of their prefix.
"""

from magi_attention.common._runs import Run
from magi_attention.recurrent._layers import (
    causal_conv1d,
    gated_delta_rule,
    kda,
    lightning,
    mamba1,
    mamba2,
    rg_lru,
    windows,
)
from magi_attention.recurrent._recurrence import Recurrence, recur

__all__ = [
    "Recurrence", "Run", "causal_conv1d", "gated_delta_rule", "kda", "lightning", "mamba1",
    "mamba2", "recur", "rg_lru", "windows",
]  # fmt: skip
