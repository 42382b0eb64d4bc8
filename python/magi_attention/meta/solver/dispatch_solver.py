# SPDX-License-Identifier: Apache-2.0
"""The original's names. Plans are placed by the library (src/plan), which DispatchConfig and the
algorithms in magi_attention.config.dispatch are options of; DispatchSolver and what belongs to it
are in magi_attention.compat, for callers with jobs of their own.
"""

from magi_attention.compat.dispatch_affinity import (
    BaseDispatchAffinity,
    IOUAffinity,
    SampleIDAffinity,
)
from magi_attention.compat.dispatch_job import DispatchData, DispatchJob
from magi_attention.compat.dispatch_solver import DispatchSolution, DispatchSolver
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
    "BaseDispatchAffinity",
    "BatchToppHeapDispatchAlg",
    "DPDispatchAlg",
    "DispatchAlg",
    "DispatchConfig",
    "DispatchData",
    "DispatchJob",
    "DispatchSolution",
    "DispatchSolver",
    "IOUAffinity",
    "LBDispatchAlg",
    "MinHeapDispatchAlg",
    "RandomSelectDispatchAlg",
    "SampleIDAffinity",
    "SequentialDispatchAlg",
    "SortedSequentialSelectAlg",
    "ThoroughDispatchAlg",
    "ToppHeapDispatchAlg",
    "ZigzagDispatchAlg",
]
