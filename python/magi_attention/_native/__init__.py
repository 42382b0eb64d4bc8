# SPDX-License-Identifier: Apache-2.0
"""The C library; the rest of the package reaches it through here. library.py loads it and turns its
status codes into exceptions; handles.py owns masks and plans, allocator.py the attention of a plan,
vtable.py communicators; structs.py has the structs of magi/magi.h.

Attention itself does not go through ctypes: attention.py packs what depends on shapes and types
once, and python/bindings/calls.c makes the calls.
"""

from magi_attention._native.handles import MaskHandle, PlacementHandle, PlanHandle

__all__ = ["MaskHandle", "PlacementHandle", "PlanHandle"]
