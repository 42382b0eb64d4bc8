# SPDX-License-Identifier: Apache-2.0
"""The API pages are made of docstrings, and have every public name of the original."""

import re
import subprocess
import sys
from pathlib import Path

from test_api_names import ROWS

ROOT = Path(__file__).resolve().parents[2]
ALIASES = {"roll_func": "roll_p2p", "roll_simple_func": "roll_simple_p2p"}


def documented(folder: Path) -> set[str]:
    """Names with an entry: "name", "Class.member"; members of code blocks count too."""
    found = set()
    for page in folder.glob("*.md"):
        owner = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"### `(\w+)`", line):
                owner = match[1]
                found.add(owner)
            elif match := re.match(r"(?:- \*\*`|    )?(\w+)(?=[:(= ,]|$)", line):
                found.add(f"{owner}.{match[1]}")
                found |= {f"{owner}.{name}" for name in re.findall(r"(\w+): ", line)}
    return found


def test_every_name_of_the_original_is_documented(tmp_path):
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "api_docs", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    found, missing = documented(tmp_path), []
    for module, name, _, _ in ROWS:
        is_private = any(part.startswith("_") for part in name.split("."))
        if is_private or module == "magi_attention":
            continue
        name = ALIASES.get(name, name)
        if name not in found:
            missing.append(f"{module}.{name}")
    assert not missing
