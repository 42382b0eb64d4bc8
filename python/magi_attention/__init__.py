# SPDX-License-Identifier: Apache-2.0
"""Exact attention for any mask, on one device and over the ranks of a context-parallel group.

New code makes a mask (masks), calls attention(q, k, v, mask) on one device, or makes a Plan and
binds it to a group. Code written for MagiAttention keeps its imports (api, common, config, ...).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from magi_attention.compat import MOVED

if TYPE_CHECKING:
    from magi_attention import backends, errors, masks, training
    from magi_attention._attention import attention
    from magi_attention.compat.keys import init_dist_attn_runtime_key, init_dist_attn_runtime_mgr
    from magi_attention.plan import BoundPlan, Plan
    from magi_attention.tracing import trace

# The release of MagiAttention whose interface this is, which programs compare. The distribution's
# version (importlib.metadata) has the library's own after a plus: 1.1.1+magi0.1.0.
__version__ = version = "1.1.1"

_OWN_NAMES = {
    "BoundPlan": "magi_attention.plan",
    "Plan": "magi_attention.plan",
    "attention": "magi_attention._attention",
    "trace": "magi_attention.tracing",
}
_OWN_MODULES = ("backends", "errors", "masks", "training")
# What programs for MagiAttention import; dir() leaves it out.
_NAMES = {
    "init_dist_attn_runtime_key": "magi_attention.compat.keys",
    "init_dist_attn_runtime_mgr": "magi_attention.compat.keys",
}
_MODULES = (
    "api", "comm", "common", "config", "env", "functional", *(m for m in MOVED if "." not in m),
)  # fmt: skip

__all__ = [  # noqa: RUF022, own names first
    "BoundPlan", "Plan", "attention", "trace", "backends", "errors", "masks",
    "training",
    "init_dist_attn_runtime_key", "init_dist_attn_runtime_mgr",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Importing the package stays cheap; what is asked for brings in torch and the library.
    if name in _OWN_MODULES or name in _MODULES:
        return import_module(f"{__name__}.{name}")
    home = _OWN_NAMES.get(name) or _NAMES.get(name)
    if home is not None:
        return getattr(import_module(home), name)
    if not name.startswith("_"):
        general = import_module(f"{__name__}.env.general")
        if name in general.VARIABLES:
            return getattr(general, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_OWN_NAMES, *_OWN_MODULES, "__all__", "__doc__", "__file__", "__version__", "version"]
