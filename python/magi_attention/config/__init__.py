# SPDX-License-Identifier: Apache-2.0
"""Configuration of plans: how rows are placed (dispatch), what overlaps (overlap), what travels
(dist_attn holds them all). Values alone; library.py turns them into the structs of the library.
"""

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
from magi_attention.config.dist_attn import DistAttnConfig
from magi_attention.config.grpcoll import GrpCollConfig
from magi_attention.config.overlap import (
    GreedyOverlapAlg,
    OverlapAlg,
    OverlapConfig,
    UniformOverlapAlg,
)

__all__ = [
    "AffinityDispatchAlg", "AutoDispatchAlg", "BSDispatchAlg", "BTPDispatchAlg",
    "BatchToppHeapDispatchAlg", "DPDispatchAlg", "DispatchAlg", "DispatchConfig", "DistAttnConfig",
    "GreedyOverlapAlg", "GrpCollConfig", "LBDispatchAlg", "MinHeapDispatchAlg", "OverlapAlg",
    "OverlapConfig", "RandomSelectDispatchAlg", "SequentialDispatchAlg",
    "SortedSequentialSelectAlg", "ThoroughDispatchAlg", "ToppHeapDispatchAlg", "UniformOverlapAlg",
    "ZigzagDispatchAlg",
]  # fmt: skip
