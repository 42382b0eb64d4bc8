# SPDX-License-Identifier: Apache-2.0
"""Communication between the ranks of a process group: which transport carries rows (group), the one
over torch's collectives (process_group), what ranks compare before a plan's first call
(first_call) and tell those who wait later (later_calls). Read group.py first. MagiAttention's
collectives as functions are in magi_attention.compat.
"""

from importlib import import_module


def __getattr__(name: str):
    # They import torch.distributed, which importing the package should not.
    if name in ("functional", "primitive"):
        return import_module(f"{__name__}.{name}")
    if name == "WorkWithPostProcessFn":
        return import_module(f"{__name__}.work").WorkWithPostProcessFn
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
