# SPDX-License-Identifier: Apache-2.0
"""Exact context-parallel attention for any mask, with the names of MagiAttention."""

__version__ = "0.1.0"


def __getattr__(name: str):
    # Importing the package stays cheap; the plan brings in the library.
    if name == "Plan":
        from magi_attention.plan import Plan

        return Plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
