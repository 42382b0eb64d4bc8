# SPDX-License-Identifier: Apache-2.0
"""Values that describe masks: ranges and types; figures of plans; what all parts
check arguments with (_arguments, _slices).
"""

from magi_attention.common import enum
from magi_attention.common.enum import AttnMaskType, AttnOverlapMode, AttnRole, AttnType
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.range import AttnRange, RangeError
from magi_attention.common.ranges import AttnRanges

__all__ = [
    "AttnForwardMeta", "AttnMaskType", "AttnOverlapMode", "AttnRange", "AttnRanges", "AttnRole",
    "AttnType", "RangeError", "enum",
]  # fmt: skip
