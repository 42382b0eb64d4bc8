# SPDX-License-Identifier: Apache-2.0
"""The original's environment variables; docs/environment.md says which have an effect."""

import logging

from magi_attention._environment import (
    PREFIX,
    is_set,
    is_whole_environment,
    num_warnings,
    whole_environment,
)
from magi_attention.env import build, comm, general

__all__ = ["build", "comm", "general"]


# The level that the logger has from here, not from the program.
_given_level: int | None = None


def apply_log_level() -> None:
    """Gives the logger "magi_attention" the level of MAGI_ATTENTION_LOG_LEVEL and, where that is
    set and the program has no handlers, one that writes to stderr. Where it is not set, a level
    that the program gave the logger stays. Lines of the library go there too.
    """
    from magi_attention._native.log import follow

    global _given_level
    logger = logging.getLogger("magi_attention")
    level, is_asked = general.log_level(), is_set(PREFIX + "LOG_LEVEL")
    if logger.level != level and (is_asked or logger.level in (logging.NOTSET, _given_level)):
        logger.setLevel(level)  # which clears what every logger has cached
        _given_level = level
    if is_asked and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    follow(logger.level)


# The environment that was found good last: a new mask costs less where it has not changed.
_good: dict | None = None


def check_all() -> None:
    """Reads every variable once: ValueError for a value that is not allowed, DeprecationWarning for
    an older name.
    """
    global _good
    if _good is not None and is_whole_environment(_good):
        return
    present, num_before = whole_environment(), num_warnings()
    for module in (general, comm, build):
        for name in module.VARIABLES:
            getattr(module, name)()
    _good = present if num_warnings() == num_before else None
