# SPDX-License-Identifier: Apache-2.0
"""Timelines of attention over the ranks of a group. recorder.trace runs a block of the program: the
library notes its steps, torch.profiler the kernels (kernels), ranks bring their clocks together
(clock), notes become passes (passes) and these the events of one file (events).
"""

from magi_attention.tracing.recorder import trace

__all__ = ["trace"]
