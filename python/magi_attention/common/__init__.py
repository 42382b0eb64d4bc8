# SPDX-License-Identifier: Apache-2.0
"""Values that describe masks: ranges, rectangles, types; figures of plans; what all parts check
arguments with (_arguments, _slices).
"""

from magi_attention.common import enum
from magi_attention.common.enum import (
    AttnMaskType,
    AttnOverlapMode,
    AttnRole,
    AttnType,
)
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.range import AttnRange, RangeError
from magi_attention.common.ranges import AttnRanges
from magi_attention.common.rectangle import AttnRectangle
from magi_attention.common.rectangles import AttnRectangles

__all__ = [
    "AttnForwardMeta",
    "AttnMask",
    "AttnMaskType",
    "AttnOverlapMode",
    "AttnRange",
    "AttnRanges",
    "AttnRectangle",
    "AttnRectangles",
    "AttnRole",
    "AttnType",
    "RangeError",
    "enum",
]


def __getattr__(name: str):
    # The only value that needs torch to be defined.
    if name == "AttnMask":
        from magi_attention.common.mask import AttnMask

        return AttnMask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
