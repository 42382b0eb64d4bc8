# SPDX-License-Identifier: Apache-2.0
"""What the package says of the library it holds."""

import subprocess
import sys

import torch

import magi_attention
from magi_attention._native.library import version
from magi_attention.env import build


def test_versions_are_equal():
    assert magi_attention.__version__ == version()


def test_gpu_kernels():
    architectures = build.gpu_architectures()
    assert all(name.startswith("sm_") for name in architectures)
    assert build.has_gpu_kernels() == bool(architectures)


def test_line_for_a_person():
    command = [sys.executable, "-m", "magi_attention"]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kernels = ", ".join(build.gpu_architectures()) or "none"
    assert line.startswith(f"magi_attention {version()}, libmagi")
    assert line.endswith(f"GPU kernels: {kernels}\n")


def test_attention_on_a_gpu_without_kernels(monkeypatch):
    """Refused in words; a fake device stands in for the GPU."""
    from magi_attention.functional import _checks

    monkeypatch.setattr(_checks, "_DEVICES", ("cpu",))
    q = torch.zeros(1, 1, 8, device="meta")
    try:
        _checks.check_qkv(q, q, q)
    except RuntimeError as error:
        assert "q is on meta; allowed: cpu, as there are no GPU kernels" in str(error)
    else:
        raise AssertionError("a tensor elsewhere was accepted")
