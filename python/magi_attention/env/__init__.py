# SPDX-License-Identifier: Apache-2.0
"""The original's environment variables; docs/python.md says which have an effect."""

from magi_attention.env import build, comm, general

__all__ = ["build", "comm", "general"]
