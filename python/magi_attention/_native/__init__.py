# SPDX-License-Identifier: Apache-2.0
"""The C library; the rest of the package reaches it through here."""

from magi_attention._native.handles import (
    MaskHandle,
    PlacementHandle,
    PlanHandle,
    mask_slices_of_matrix,
)

__all__ = ["MaskHandle", "PlacementHandle", "PlanHandle", "mask_slices_of_matrix"]
