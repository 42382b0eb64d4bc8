# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/pictures/README.md that `magi show` makes and compares them with those
there: draws_pictures.py MAGI ROOT. Exit code 1, with their names, where some differ.
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
if differing:
    sys.exit(f"magi show draws others than {', '.join(differing)}")
