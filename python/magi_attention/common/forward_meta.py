# SPDX-License-Identifier: Apache-2.0
"""What a forward call gives besides the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass
class AttnForwardMeta:
    """lse: natural log of the softmax denominator, [rows_q, heads_q], float32 (float64 for float64
    inputs); max_logits: [heads_q], or None unless asked for.
    """

    lse: torch.Tensor | None
    max_logits: torch.Tensor | None = None
