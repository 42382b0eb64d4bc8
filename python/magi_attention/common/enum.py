# SPDX-License-Identifier: Apache-2.0
"""Names of mask types, modes and algorithms."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

AttnSinkLayout: TypeAlias = Literal["sh", "shd", "ssh"]  # "shd" is not available
GroupReduceOp: TypeAlias = Literal["sum", "avg", "lse"]


def __getattr__(name: str) -> Any:
    if name == "OutMaybeWithLSE":  # a type of torch, which this module does without
        import torch

        return torch.Tensor | tuple[torch.Tensor, torch.Tensor]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class AttnType(Enum):
    """The owners of keys."""

    SELF_ATTN = "self_attn"
    CROSS_ATTN = "cross_attn"


class AttnRole(Enum):
    """A tensor's part in attention."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"


class AttnMaskType(Enum):
    """Which pairs of a (query range, key range) slice are visible."""

    FULL = "full"
    CAUSAL = "causal"  # aligned bottom right
    BICAUSAL = "bi_causal"  # causal and inverse causal at once
    INVCAUSAL = "inv_causal"  # aligned top left

    # Members are compared by identity, so the identity may be the hash; the Enum's own hash is
    # a Python call, which shows for lists of a thousand types.
    __hash__ = object.__hash__

    @classmethod
    def from_int_type(cls, int_type: int) -> AttnMaskType:
        """0 full, 1 causal, 2 inverse causal, 3 bidirectional causal; ValueError otherwise."""
        try:
            return _FROM_INT[int_type]
        except (KeyError, TypeError):
            raise ValueError(f"int_type is {int_type!r}; allowed: 0, 1, 2, 3") from None

    def to_int_type(self) -> int:
        """The number of from_int_type."""
        return _TO_INT[self]


_FROM_INT = {
    0: AttnMaskType.FULL,
    1: AttnMaskType.CAUSAL,
    2: AttnMaskType.INVCAUSAL,
    3: AttnMaskType.BICAUSAL,
}
_TO_INT = {mask_type: number for number, mask_type in _FROM_INT.items()}
AttnMaskType._FROM_INT_MAP = _FROM_INT
AttnMaskType._TO_INT_MAP = _TO_INT


class AttnOverlapMode(Enum):
    """Whether the number of overlap stages is given or chosen."""

    STATIC = "static"
    DYNAMIC = "dynamic"


class DispatchAlgType(Enum):
    """Placements of chunks. AUTO, THOROUGH, ZIGZAG and AFFINITY are this library's."""

    LOWER_BOUND = "lower_bound"
    DYNAMIC_PROGRAMMING = "dynamic_programming"
    BINARY_SEARCH = "binary_search"
    MIN_HEAP = "min_heap"
    TOPP_HEAP = "topp_heap"
    BACKTRACKING_PRUNING = "backtracing_pruning"
    RANDOM_SELECT = "random_select"
    SEQUENTIAL_SELECT = "sequential_select"
    BATCH_TOPP_HEAP = "batch_topp_heap"
    SORTED_SEQUENTIAL_SELECT = "sorted_sequential_select"
    AUTO = "auto"
    THOROUGH = "thorough"
    ZIGZAG = "zigzag"
    AFFINITY = "affinity"


class OverlapAlgType(Enum):
    """The ways remote keys are shared out among stages."""

    UNIFORM = "uniform"
    GREEDY = "greedy"


class DynamicAttnAlgType(Enum):
    """Names of MagiAttention's searches of work; plans that move queries have one of their own."""

    NON_COMMUNICATION_QO = "non_communication_qo"
    GREEDY_RANDOM_GRID = "greedy_random_grid"
    SIMPLEX_NETWORK_FLOW = "simplex_network_flow"
    FAST_SIMPLEX_NETWORK_FLOW = "fast_simplex_network_flow"
    BINARY_GREEDY = "binary_greedy"
    BINARY_GREEDY_PARALLEL = "binary_greedy_parallel"


class MagiAttentionKernelBackend(Enum):
    """The packages whose kernels compute attention: docs/backends.md. FLEX, torch's FlexAttention,
    and MMA, the library's own kernels for every GPU since Ampere, are this package's additions.
    CUTEDSL means what FFA does, the library's own.
    """

    FFA = "ffa"
    SDPA = "sdpa"
    SDPA_OL = "sdpa_ol"
    FA4 = "fa4"
    CUTEDSL = "cutedsl"
    CUDNN = "cudnn"
    FLEX = "flex"
    MMA = "mma"


class MagiAttentionPrecision(Enum):
    """Types that MAGI_ATTENTION_PRECISION casts q, k, v to."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"

    def to_torch_dtype(self) -> torch.dtype:
        """The torch.dtype of this name."""
        import torch

        names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
        return getattr(torch, names[self.value])


class GrpCollBufferName(Enum):
    """Buffers of the original's native collectives; names only."""

    GroupCastDefault = "group_cast_default"
    GroupReduceDefault = "group_reduce_default"
    GroupCastQO = "group_cast_qo"
    GroupReduceQO = "group_reduce_qo"
