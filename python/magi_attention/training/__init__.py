# SPDX-License-Identifier: Apache-2.0
"""What a training of long sequences keeps, recomputes and moves to host memory (docs/training.md):
checkpoints that keep attention, saved tensors in host memory, attention by groups of kv heads, the
loss and other functions over chunks of rows; how much memory it takes (docs/training.md).
"""

from __future__ import annotations

from magi_attention.training.checkpoint import ATTENTION_OPS, keeping_attention, save_attention
from magi_attention.training.longest import causal_memory, longest_sequence
from magi_attention.training.offload import Offload
from magi_attention.training.parts import attend_by_groups, loss_over_rows, over_rows
from magi_attention.training_memory import ModelShape, Training, TrainingMemory

__all__ = [
    "ATTENTION_OPS", "ModelShape", "Offload", "Training", "TrainingMemory", "attend_by_groups",
    "causal_memory", "keeping_attention", "longest_sequence", "loss_over_rows", "over_rows",
    "save_attention",
]  # fmt: skip
