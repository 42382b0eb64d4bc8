# SPDX-License-Identifier: Apache-2.0
"""The affinities of magi_attention.compat.dispatch_affinity under the original's module name."""

from magi_attention.compat.dispatch_affinity import (
    BaseDispatchAffinity,
    IOUAffinity,
    SampleIDAffinity,
)

__all__ = [
    "BaseDispatchAffinity",
    "IOUAffinity",
    "SampleIDAffinity",
]
