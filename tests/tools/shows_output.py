# SPDX-License-Identifier: Apache-2.0
"""Runs a program and compares what it prints with what a page shows: shows_output.py PROGRAM PAGE

Exit code 1 where no block of text of the page is the output.
"""

import pathlib
import re
import subprocess
import sys

program, page = sys.argv[1:]
output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
blocks = re.findall(r"```text\n(.*?)```", pathlib.Path(page).read_text(encoding="utf-8"), re.S)
if output not in blocks:
    sys.exit(f"{page} does not show what {program} prints:\n{output}")
