# SPDX-License-Identifier: Apache-2.0
"""Warnings of older names, at the line of the program that uses them."""

from __future__ import annotations

import sys
import warnings

_OWN = ("magi_attention", "magi_attn_extensions")


def warn_deprecated(text: str) -> None:
    """A DeprecationWarning at the first line outside of this package among the callers: Python
    shows such warnings for lines of the program alone, and once for each line.
    """
    warnings.warn(text, DeprecationWarning, stacklevel=_levels_to_program() + 1)


def _levels_to_program() -> int:
    """Counts callers of warn_deprecated, itself included, are the package's own."""
    frame, levels = sys._getframe(1), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _OWN:
        frame, levels = frame.f_back, levels + 1
    return levels
