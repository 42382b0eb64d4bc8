# SPDX-License-Identifier: Apache-2.0
"""Rules of every source, whatever its language."""

import re

FILE_LINES = 600
COLUMNS = 100
# Spelled in pieces so that this file does not find itself.
BANNED = re.compile(
    "|".join(
        [r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bX" + r"XX\b", r"not implemented" + r" yet"]
    )
)


def check_text(path, text, report):
    """Caps on the file's lines and columns."""
    lines = text.splitlines()
    if len(lines) > FILE_LINES:
        report(path, 1, f"{len(lines)} lines; at most {FILE_LINES}")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            report(path, number, f"{len(line)} columns; at most {COLUMNS}")


def check_words(path, text, report):
    """Words of unfinished work, and spaces at the end of a line."""
    for number, line in enumerate(text.splitlines(), 1):
        match = BANNED.search(line)
        if match:
            report(path, number, f"'{match.group(0)}'")
        if line != line.rstrip():
            report(path, number, "trailing space")


def check_spdx(path, text, report):
    """The licence in one of the first two lines."""
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.splitlines()[:2]):
        report(path, 1, "no SPDX line")
