# SPDX-License-Identifier: Apache-2.0
"""Arguments of one attention call as ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from magi_attention._native.handles import MaskHandle
from magi_attention.common.ranges import AttnRanges

if TYPE_CHECKING:
    import torch


@dataclass
class AttnArg:
    """Slices of one call: queries q_ranges[i] see keys k_ranges[i] under the type of number
    attn_type_map[i] (0 full, 1 causal, 2 inverse causal, 3 both). total_area: visible pairs, of all
    slices together; counted where it is negative.
    """

    q_ranges: AttnRanges
    k_ranges: AttnRanges
    attn_type_map: list[int]
    total_area: int = -1

    def __post_init__(self) -> None:
        if not len(self.q_ranges) == len(self.k_ranges) == len(self.attn_type_map):
            raise ValueError(
                f"q_ranges, k_ranges, attn_type_map have {len(self.q_ranges)}, "
                f"{len(self.k_ranges)}, {len(self.attn_type_map)} entries; allowed: equal numbers"
            )
        if self.total_area < 0:
            sides = self.q_ranges, self.k_ranges
            naive = (ranges.to_naive_ranges() for ranges in sides)
            rows = (0 if ranges.is_empty() else ranges.end for ranges in sides)
            self.total_area = MaskHandle.from_ranges(*naive, self.attn_type_map, *rows).area()

    def can_skip(self, is_bwd: bool = False) -> bool:
        """Whether no slice is left to compute; the same in forward and backward."""
        return len(self.q_ranges) == 0

    def to_ffa_args(
        self, is_bwd: bool = False, device: torch.device | str | int = "cpu"
    ) -> dict[str, torch.Tensor]:
        """q_ranges and k_ranges int32 [n, 2] and attn_type_map int32 [n], by these names: what
        flex_flash_attn_func takes, the same in forward and backward.
        """
        import torch

        types = torch.tensor(self.attn_type_map, dtype=torch.int32, device=device)
        return {
            "q_ranges": self.q_ranges.to_tensor(device),
            "k_ranges": self.k_ranges.to_tensor(device),
            "attn_type_map": types,
        }
