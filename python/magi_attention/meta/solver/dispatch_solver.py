# SPDX-License-Identifier: Apache-2.0
"""The original's names of placement algorithms; the library places rows (src/plan)."""

from magi_attention.config.dispatch import (
    AffinityDispatchAlg,
    AutoDispatchAlg,
    BatchToppHeapDispatchAlg,
    BSDispatchAlg,
    BTPDispatchAlg,
    DispatchAlg,
    DispatchConfig,
    DPDispatchAlg,
    LBDispatchAlg,
    MinHeapDispatchAlg,
    RandomSelectDispatchAlg,
    SequentialDispatchAlg,
    SortedSequentialSelectAlg,
    ThoroughDispatchAlg,
    ToppHeapDispatchAlg,
    ZigzagDispatchAlg,
)

__all__ = [
    "AffinityDispatchAlg",
    "AutoDispatchAlg",
    "BSDispatchAlg",
    "BTPDispatchAlg",
    "BatchToppHeapDispatchAlg",
    "DPDispatchAlg",
    "DispatchAlg",
    "DispatchConfig",
    "LBDispatchAlg",
    "MinHeapDispatchAlg",
    "RandomSelectDispatchAlg",
    "SequentialDispatchAlg",
    "SortedSequentialSelectAlg",
    "ThoroughDispatchAlg",
    "ToppHeapDispatchAlg",
    "ZigzagDispatchAlg",
]
