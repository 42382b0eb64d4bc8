# SPDX-License-Identifier: Apache-2.0
"""BoundPlan under its own module's name; it stands in plan.py, as plans make bound plans."""

from magi_attention.plan import BoundPlan

__all__ = [
    "BoundPlan",
]
