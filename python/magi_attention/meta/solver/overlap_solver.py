# SPDX-License-Identifier: Apache-2.0
"""The original's names. The stages of plans are the library's (src/plan), which OverlapConfig and
the algorithms in magi_attention.config.overlap are options of; OverlapSolver and what belongs to it
are in magi_attention.compat, for callers with costs of their own.
"""

from magi_attention.compat.overlap_solver import OverlapSolution, OverlapSolver, OverlapStageCost
from magi_attention.config.overlap import (
    GreedyOverlapAlg,
    OverlapAlg,
    OverlapConfig,
    UniformOverlapAlg,
)

__all__ = [
    "GreedyOverlapAlg",
    "OverlapAlg",
    "OverlapConfig",
    "OverlapSolution",
    "OverlapSolver",
    "OverlapStageCost",
    "UniformOverlapAlg",
]
