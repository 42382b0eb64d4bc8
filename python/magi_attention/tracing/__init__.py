# SPDX-License-Identifier: Apache-2.0
"""Timelines of attention over the ranks of a group."""

from magi_attention.tracing.recorder import trace

__all__ = ["trace"]
