# SPDX-License-Identifier: Apache-2.0
"""The library's log lines, as records of Python's logging."""

from __future__ import annotations

import atexit
import logging
from ctypes import CFUNCTYPE, c_char_p, c_int32, c_void_p, cast

from magi_attention._native.library import check, lib

# The library's levels: error, warn, info, debug.
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
_SINK = CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_char_p)
_followed: int | None = None


def _log_line(context: int | None, level: int, module: bytes, text: bytes) -> None:
    name = "magi_attention." + module.decode(errors="replace")
    logging.getLogger(name).log(_LEVELS[level], "%s", text.decode(errors="replace"))


_sink = _SINK(_log_line)


def follow(level: int) -> None:
    """Gives the library's lines to loggers below "magi_attention", those up to this level of
    Python's logging alone, so that the library makes no text of others.
    """
    global _followed
    if level == _followed:
        return
    if _followed is None:
        # Threads of the library may outlive the interpreter, which must not be called any more.
        atexit.register(lib.magi_set_log_sink, None, None, 0)
    # Errors pass at least: the logger may still refuse them.
    threshold = max((i for i, one in enumerate(_LEVELS) if one >= level), default=0)
    check(lib.magi_set_log_sink(cast(_sink, c_void_p), None, threshold))
    _followed = level
