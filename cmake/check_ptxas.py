#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiler launcher: runs nvcc and fails where a kernel spills or its wgmma are serialised.

Machine code for sm_90 may spill: it is made of code for GPUs before Hopper, whose tiles are chosen
for those. Kernels for Hopper are for sm_90a.
"""

import re
import subprocess
import sys

SPILL = re.compile(r"\b([1-9]\d*) bytes (?:stack frame|spill stores|spill loads)")
SERIALISED = re.compile(r"\(C75(?!19)\d\d\)")


def main():
    run = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    bad, may_spill = [], False
    for line in run.stdout.splitlines():
        if "Compiling entry function" in line:
            may_spill = line.rstrip().endswith("for 'sm_90'")
        if (SPILL.search(line) and not may_spill) or SERIALISED.search(line):
            bad.append(line)
    if run.returncode != 0 or bad:
        sys.stderr.write(run.stdout)
    for line in bad:
        sys.stderr.write(f"refused: {line}\n")
    return run.returncode or (1 if bad else 0)


if __name__ == "__main__":
    sys.exit(main())
