# SPDX-License-Identifier: Apache-2.0
"""Real text of this machine as packed documents of bytes: the project's own documents, the licences
of Debian and the sources of Python's standard library, whichever are there.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
import re
import sysconfig
from collections.abc import Iterator

import torch

VOCABULARY = 256
_BEGIN = 0  # the byte that starts a document
IGNORED = -100
_LEAST_BYTES, _MOST_BYTES = 24, 1500
_ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Packed:
    """One sequence: ids, the byte to predict at each row (IGNORED at the end of a document) and
    positions within documents, int64 [rows]; bounds, int32 [documents + 1].
    """

    ids: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    bounds: torch.Tensor


def _files() -> list[pathlib.Path]:
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [
        *sorted(_ROOT.glob("*.md")),
        *sorted((_ROOT / "docs").rglob("*.md")),
        *sorted(p for p in pathlib.Path("/usr/share/common-licenses").glob("*") if p.is_file()),
        *sorted(library.glob("*.py")),
    ]


def documents(num_bytes: int, most_bytes: int = _MOST_BYTES) -> Iterator[bytes]:
    """Pieces of these files, sections of texts, functions and classes of sources, at least
    num_bytes in all; with a larger most_bytes whole files. The order is shuffled, the same in every
    run.
    """
    pieces: list[bytes] = []
    for path in _files():
        text = path.read_bytes()
        is_cut = most_bytes <= _MOST_BYTES
        for piece in re.split(rb"\n(?=\n\n|## |def |class )", text) if is_cut else [text]:
            piece = piece.strip(b"\n")[:most_bytes]
            if len(piece) >= _LEAST_BYTES:
                pieces.append(piece)
    found = sum(map(len, pieces))
    if found < num_bytes:
        raise ValueError(f"this machine has {found} bytes of text; allowed: {num_bytes} or more")
    random.Random(0).shuffle(pieces)
    return iter(pieces)


class Text:
    """Sequences of `rows` bytes, each of packed documents; a document that does not fit goes on in
    the next sequence as another one.
    """

    def __init__(self, rows: int, num_sequences: int, most_bytes: int = _MOST_BYTES) -> None:
        self.rows, self.num_sequences = rows, num_sequences
        stream = documents(rows * num_sequences, most_bytes)
        rest = b""
        self._sequences = []
        for _ in range(num_sequences):
            parts = []
            left = rows
            while left > 0:
                part = bytes([_BEGIN]) + (rest or next(stream))
                rest = part[left:]
                parts.append(part[:left])
                left -= len(parts[-1])
            self._sequences.append(parts)

    def sequence(self, index: int) -> Packed:
        parts = [torch.tensor(list(part)) for part in self._sequences[index]]
        ends = torch.tensor([0] + [len(part) for part in parts]).cumsum(0)
        end = torch.tensor([IGNORED])
        return Packed(
            ids=torch.cat(parts),
            targets=torch.cat([piece for part in parts for piece in (part[1:], end)]),
            positions=torch.cat([torch.arange(len(part)) for part in parts]),
            bounds=ends.to(torch.int32),
        )
