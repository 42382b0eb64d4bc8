# SPDX-License-Identifier: Apache-2.0
"""Attention backends: limits of the library's own, those of other packages, and others supplied as
functions of Python.

A backend computes plain attention over band slices on one device. The library plans, moves rows,
merges results over several sets of keys and adds gradients; so a supplied backend runs any plan.
"""

from magi_attention._native.backend import Gradients, Inputs, Limits, Problem, Result
from magi_attention.backends._registry import limits, register, unregister
from magi_attention.backends._table import Row, table

__all__ = [
    "Gradients", "Inputs", "Limits", "Problem", "Result", "Row", "limits", "register", "table",
    "unregister",
]  # fmt: skip
