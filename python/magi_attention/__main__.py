# SPDX-License-Identifier: Apache-2.0
"""`python -m magi_attention`: versions, the GPUs that the package holds kernels for, and which
backends serve this machine. `python -m magi_attention doctor` says more and runs them; `memory`
tells what a training takes of a GPU.
"""

import sys

from magi_attention import __version__, _doctor, _memory, backends
from magi_attention._native.library import version
from magi_attention.env import build, general
from magi_attention.functional.kernel_backend import backend_of_environment


def _line(row: backends.Row, is_chosen: bool) -> str:
    """A backend: what chooses it, what it is, what it serves here or why no GPU."""
    package = f"{row.package} {row.version}".strip()
    served = ", ".join(row.devices) or "nothing here"
    why = f" ({row.reason})" if row.reason else ""
    return f"{'*' if is_chosen else ' '} {', '.join(row.values):13s} {package}: {served}{why}"


def main(arguments: list[str]) -> int:
    """The exit code: the doctor's or memory's, or 1 where the backend that the environment chooses
    cannot be used, or 2 for other arguments but --help.
    """
    if arguments[:1] == ["doctor"]:
        return _doctor.main(arguments[1:], __version__)
    if arguments[:1] == ["memory"]:
        return _memory.main(arguments[1:])
    if arguments:
        is_asked = arguments in (["-h"], ["--help"])
        usage = "usage: python -m magi_attention [doctor [--json] | memory ...]"
        print(f"{usage}\n{__doc__}" if is_asked else f"{usage}; seen: {' '.join(arguments)}")
        return 0 if is_asked else 2
    kernels = ", ".join(build.gpu_architectures()) or "none"
    print(f"magi_attention {__version__}, libmagi {version()}, GPU kernels: {kernels}")
    try:
        chosen = general.kernel_backend().value
    except ValueError as error:
        print(error)
        return 1
    print(f"attention by MAGI_ATTENTION_KERNEL_BACKEND, here {chosen}:")
    for row in backends.table():
        print(_line(row, chosen in row.values))
    try:
        backend_of_environment()
    except (RuntimeError, ValueError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
