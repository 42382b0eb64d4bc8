# SPDX-License-Identifier: Apache-2.0
"""The longest sequence whose training fits a GPU."""

from __future__ import annotations

from magi_attention import masks
from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind
from magi_attention.config import DistAttnConfig
from magi_attention.plan import Plan
from magi_attention.training_memory import ModelShape, Training, TrainingMemory

_UNIT = 1024  # tokens of a rank


def causal_memory(
    model: ModelShape,
    training: Training,
    tokens: int,
    cp_size: int = 1,
    transport: str = "nvlink",
    config: DistAttnConfig | None = None,
) -> TrainingMemory:
    """The memory of the rank that needs most, for one causal document; transport: as in
    Plan.memory, config: as in Plan.from_mask. ValueError or TypeError as these.
    """
    check_kind("model", model, ModelShape, "a ModelShape")
    check_kind("training", training, Training, "a Training")
    groups = training.head_groups
    plan = Plan.from_mask(
        masks.from_cu_seqlens([0, tokens]), cp_size=cp_size, num_heads_q=model.heads // groups,
        num_heads_kv=max(1, model.kv_heads // groups), head_dim=model.head_dim, config=config,
    )  # fmt: skip
    ranks = plan.memory(model, training, transport)
    return max(ranks, key=lambda memory: memory.peak + memory.outside)


def longest_sequence(
    model: ModelShape,
    training: Training,
    gpu_bytes: int,
    cp_size: int = 1,
    transport: str = "nvlink",
    config: DistAttnConfig | None = None,
) -> int:
    """The tokens of the longest causal document whose training takes at most gpu_bytes of each
    GPU, in multiples of 1,024 for each of cp_size ranks; 0 where none fits. Others as in
    causal_memory; a document that cannot keep config.max_exchange_bytes does not fit.
    """
    check_int("gpu_bytes", gpu_bytes, 1)
    unit = _UNIT * check_int("cp_size", cp_size, 1)

    def fits(units: int) -> bool:
        try:
            memory = causal_memory(model, training, units * unit, cp_size, transport, config)
        except ValueError as error:
            if str(error).startswith("max_exchange_bytes "):
                return False
            raise
        return memory.peak + memory.outside <= gpu_bytes

    most = MAX_ROWS // unit
    high = 1
    while high <= most and fits(high):
        high *= 2
    low, high = high // 2, min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * unit
