# SPDX-License-Identifier: Apache-2.0
"""The original's environment variables; docs/environment.md says which have an effect."""

from magi_attention.env import build, comm, general

__all__ = ["build", "comm", "general"]


def check_all() -> None:
    """Reads every variable once: ValueError for a value that is not allowed, DeprecationWarning for
    an older name.
    """
    for module in (general, comm, build):
        for name in module.VARIABLES:
            getattr(module, name)()
