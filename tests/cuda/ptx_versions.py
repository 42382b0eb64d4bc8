#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether files hold PTX for a compute capability: ptx_versions.py 80 FILE...

Drivers compile PTX for GPUs that came later, such as sm_100, for which there is no machine code.
"""

import struct
import sys

FATBIN = struct.pack("<I", 0xBA55ED50)
PTX = 1  # the kind of an entry; 2 is machine code


def entries(contents):
    """(kind, compute capability) of what the CUDA binaries in a file hold."""
    at = contents.find(FATBIN)
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", contents, at)
        place, end = at + header, at + header + size
        while place < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", contents, place)
            (capability,) = struct.unpack_from("<I", contents, place + 28)
            yield kind, capability
            place += header + size
        at = contents.find(FATBIN, max(end, at + 1))


def main():
    wanted = (PTX, int(sys.argv[1]))
    status = 0
    for name in sys.argv[2:]:
        with open(name, "rb") as file:
            found = sorted(set(entries(file.read())))
        if wanted not in found:
            print(f"{name} holds (kind, capability) {found}; wanted: {wanted}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
