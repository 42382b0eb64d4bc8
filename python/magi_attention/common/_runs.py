# SPDX-License-Identifier: Apache-2.0
"""Runs: rows of one rank that follow each other in one document, as recurrent layers take them."""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """Rows [begin, end) of the sequence that one rank holds, each after the row before it in its
    document. parent: the row after which the first one comes, the last before it that it sees; -1:
    none, as a document begins there. A branch of a prefix tree comes after the end of its prefix.
    """

    begin: int
    end: int
    parent: int
