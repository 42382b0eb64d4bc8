# SPDX-License-Identifier: Apache-2.0
"""The original's names of overlap algorithms; the library cuts stages (src/plan)."""

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
    "UniformOverlapAlg",
]
