# SPDX-License-Identifier: Apache-2.0
"""Configuration of distributed attention."""

from __future__ import annotations

from dataclasses import dataclass, field

from magi_attention.comm.primitive.grpcoll._config import GrpCollConfig
from magi_attention.config.dispatch import DispatchConfig
from magi_attention.config.overlap import OverlapConfig, chosen_overlap


@dataclass(frozen=True)
class DistAttnConfig:
    """How rows are placed, communication overlapped and collectives run. Hashable; equal
    configurations make equal keys.
    """

    dispatch_config: DispatchConfig = field(default_factory=DispatchConfig)
    overlap_config: OverlapConfig = field(default_factory=chosen_overlap)
    grpcoll_config: GrpCollConfig = field(default_factory=GrpCollConfig)

    def __post_init__(self) -> None:
        expected = (
            ("dispatch_config", DispatchConfig),
            ("overlap_config", OverlapConfig),
            ("grpcoll_config", GrpCollConfig),
        )
        for name, kind in expected:
            if not isinstance(getattr(self, name), kind):
                raise TypeError(
                    f"{name} is a {type(getattr(self, name)).__name__}; allowed: {kind.__name__}"
                )
        parts = (self.dispatch_config, self.overlap_config, self.grpcoll_config)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash
