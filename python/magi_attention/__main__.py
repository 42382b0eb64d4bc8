# SPDX-License-Identifier: Apache-2.0
"""`python -m magi_attention`: versions, and the GPUs that the package holds kernels for."""

from magi_attention import __version__
from magi_attention._native.library import version
from magi_attention.env import build


def main() -> None:
    """Prints one line for a person."""
    kernels = ", ".join(build.gpu_architectures()) or "none"
    print(f"magi_attention {__version__}, libmagi {version()}, GPU kernels: {kernels}")


if __name__ == "__main__":
    main()
