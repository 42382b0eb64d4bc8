# SPDX-License-Identifier: Apache-2.0
"""Where helpers make tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def default_device(device: Any = None) -> torch.device:
    """The device given; for None and "cuda" the current GPU, or host memory where torch has no
    CUDA.
    """
    import torch

    if device is None or device == "cuda":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)
