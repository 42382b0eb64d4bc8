# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/pictures/README.md that `magi show` and `magi simulate` make and
compares them with those there: draws_pictures.py MAGI ROOT. Exit code 1, with their names, where
some differ.
"""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

magi, root = sys.argv[1], pathlib.Path(sys.argv[2])
text = (root / "docs/pictures/README.md").read_text(encoding="utf-8")
commands = re.findall(r"^    magi (show (?:.*\\\n)*.*)$", text, re.M)
if not commands:
    sys.exit("docs/pictures/README.md has no command of magi show")
differing = []
for command in commands:
    arguments = shlex.split(command.replace("\\\n", " "))
    place = arguments.index("--out") + 1
    shown = root / arguments[place]
    with tempfile.TemporaryDirectory() as folder:
        arguments[place] = folder
        subprocess.run([magi, *arguments], cwd=root, check=True, capture_output=True)
        differing += [
            str(picture.relative_to(root))
            for picture in sorted(shown.glob("*.svg"))
            if picture.read_text() != (pathlib.Path(folder) / picture.name).read_text()
        ]
curves = re.findall(
    r"`(\S+\.svg)` is `time\.svg` of\n\n    magi (simulate (?:.*\\\n)*.*)$", text, re.M
)
if not curves:
    sys.exit("docs/pictures/README.md has no command of magi simulate")
for name, command in curves:
    arguments = shlex.split(command.replace("\\\n", " "))
    with tempfile.TemporaryDirectory() as folder:
        arguments[arguments.index("--curves") + 1] = folder
        subprocess.run([magi, *arguments], cwd=root, check=True, capture_output=True)
        drawn = (pathlib.Path(folder) / "time.svg").read_text()
    if drawn != (root / "docs/pictures" / name).read_text():
        differing.append(f"docs/pictures/{name}")
if differing:
    sys.exit(f"magi draws others than {', '.join(differing)}")
