# SPDX-License-Identifier: Apache-2.0
"""Arguments of one attention call as ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from magi_attention.common.ranges import AttnRanges

if TYPE_CHECKING:
    import torch


@dataclass
class AttnArg:
    """Slices of one call: queries q_ranges[i] see keys k_ranges[i] under the type of number
    attn_type_map[i] (0 full, 1 causal, 2 inverse causal, 3 both).
    """

    q_ranges: AttnRanges
    k_ranges: AttnRanges
    attn_type_map: list[int]

    def to_ffa_args(self, device: torch.device | str | int = "cpu") -> dict[str, torch.Tensor]:
        """q_ranges and k_ranges int32 [n, 2] and attn_type_map int32 [n], by these names: what
        flex_flash_attn_func takes.
        """
        import torch

        types = torch.tensor(self.attn_type_map, dtype=torch.int32, device=device)
        return {
            "q_ranges": self.q_ranges.to_tensor(device),
            "k_ranges": self.k_ranges.to_tensor(device),
            "attn_type_map": types,
        }
