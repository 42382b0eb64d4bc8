# SPDX-License-Identifier: Apache-2.0
"""The original's C++ classes by the name of its extension module, whose import is how installations
are tested. Here they are those of magi_attention.common; the compiled part is libmagi.
"""

from magi_attention.common.enum import AttnMaskType
from magi_attention.common.range import AttnRange
from magi_attention.common.ranges import AttnRanges

__all__ = ["AttnMaskType", "AttnRange", "AttnRanges"]
