# SPDX-License-Identifier: Apache-2.0
"""Exact context-parallel attention for any mask, with the names of MagiAttention.

Programs begin with a mask (masks), a Plan made from it and Plan.bind(group); or with the functions
of api, which keep plans behind runtime keys. Who changes the package begins with python/README.md.
"""

# The release of MagiAttention whose interface this is, which programs compare. The distribution's
# version (importlib.metadata) has the library's own behind a plus: 1.1.1+magi0.1.0.
__version__ = version = "1.1.1"

_MODULES = (
    "api", "backends", "comm", "common", "config", "env", "errors", "functional", "masks",
    "testing", "utils",
)  # fmt: skip
_HOMES = {
    "BoundPlan": "magi_attention.plan",
    "Plan": "magi_attention.plan",
    "trace": "magi_attention.tracing",
    "init_dist_attn_runtime_key": "magi_attention.dist_attn_runtime_mgr",
    "init_dist_attn_runtime_mgr": "magi_attention.dist_attn_runtime_mgr",
}


def __getattr__(name: str):
    # Importing the package stays cheap; what is asked for brings in torch and the library.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if not name.startswith("_"):
        general = import_module(f"{__name__}.env.general")
        if name in general.VARIABLES:
            return getattr(general, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, *_HOMES])
