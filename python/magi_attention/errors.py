# SPDX-License-Identifier: Apache-2.0
"""Errors of communication."""

from __future__ import annotations


class CommError(RuntimeError):
    """Communication between ranks failed; `failure` is "timeout", "peer died", "plan mismatch",
    "aborted" or "system", `code` its number.
    """

    TIMEOUT, PEER_DIED, PLAN_MISMATCH, ABORTED, SYSTEM = range(1, 6)
    _NAMES = ("timeout", "peer died", "plan mismatch", "aborted", "system")

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code if 1 <= code <= 5 else CommError.SYSTEM
        self.failure = CommError._NAMES[self.code - 1]
