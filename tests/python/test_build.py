# SPDX-License-Identifier: Apache-2.0
"""What the package says of the library it holds."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch

import magi_attention
import magi_attention.magi_attn_ext as extension
from magi_attention import backends
from magi_attention._native.library import ABI_VERSION, version
from magi_attention.common import AttnRange
from magi_attention.env import build
from magi_attention.functional import _checks
from ranks import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_versions():
    """That of the original's interface, and that of the library in the distribution's."""
    assert magi_attention.__version__ == magi_attention.version == "1.1.1"
    told = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert told == f"1.1.1+magi{version()}"
    try:
        installed = importlib.metadata.version("magi_attention")
    except importlib.metadata.PackageNotFoundError:
        return
    assert installed == told


def test_imports_where_torch_has_no_tag_against_capture():
    """As torch 2.6, which the package takes, has none."""
    program = "import torch; del torch._C.Tag.cudagraph_unsafe; import magi_attention.api"
    assert launch(program) == (0, "")


def test_parts_are_there_once_the_package_is_imported():
    """What the guide names behind `import magi_attention`, without an import of its own."""
    code = """
import magi_attention
for part in ("api", "backends", "errors", "masks", "training", "BoundPlan", "Plan", "trace"):
    assert part == "api" or part in dir(magi_attention), part  # dir() tells what is new
    getattr(magi_attention, part)
"""
    assert launch(code) == (0, "")


def test_the_extension_imports():
    assert extension.AttnRange is AttnRange and set(extension.__all__) <= set(vars(extension))


def test_imports_leave_compilers_alone():
    """Programs that compile nothing do not wait for torch to load its compiler."""
    code = """
import sys, torch
before = set(sys.modules)
import magi_attention.api, magi_attention.masks, magi_attn_extensions
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
compilers = ["torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy"]
print(loaded & {"numpy", "transformers"}, [c for c in compilers if c in set(sys.modules) - before])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set() []\n"


def test_gpu_kernels():
    architectures = build.gpu_architectures()
    assert all(name.startswith("sm_") for name in architectures)
    assert build.has_gpu_kernels() == bool(architectures)


def printed_to_a_person(backend: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "magi_attention"]
    environment = os.environ | {"MAGI_ATTENTION_KERNEL_BACKEND": backend}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout.splitlines()


def test_lines_for_a_person():
    status, lines = printed_to_a_person("sdpa")
    kernels = ", ".join(build.gpu_architectures()) or "none"
    assert status == 0
    assert lines[0].startswith(f"magi_attention 1.1.1, libmagi {version()}")
    assert lines[0].endswith(f"GPU kernels: {kernels}")
    chosen = [line for line in lines if line.startswith("* ")]
    assert len(chosen) == 1 and "sdpa, sdpa_ol torch" in chosen[0] and ": cpu" in chosen[0]


def test_a_backend_that_does_not_serve_this_machine_is_told():
    rows = {row.values[0]: row for row in backends.table()}
    missing = [value for value, row in rows.items() if not row.devices]
    for value in missing[:1]:
        status, lines = printed_to_a_person(value)
        assert status == 1 and lines[-1].startswith(f"backend is {value}, but {rows[value].reason}")


def test_attention_on_a_gpu_without_kernels(monkeypatch):
    """Refused in words; a fake device stands in for the GPU."""
    monkeypatch.setattr(_checks, "_DEVICES", ("cpu",))
    q = torch.zeros(1, 1, 8, device="meta")
    try:
        _checks.check_qkv(q, q, q)
    except RuntimeError as error:
        assert "q is on meta; allowed: cpu, as there are no GPU kernels" in str(error)
    else:
        raise AssertionError("a tensor elsewhere was accepted")


def test_wheel_serves_every_version_of_python():
    try:
        described = importlib.metadata.distribution("magi-attention").read_text("WHEEL")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    assert "Tag: cp310-abi3-linux" in described


@pytest.mark.parametrize(
    "source",
    ["", f"int magi_abi_version(void) {{ return {ABI_VERSION}; }}"],
    ids=["nothing", "version alone"],
)
def test_another_library(tmp_path, source):
    """One without the functions of libmagi, all or some of them."""
    library = tmp_path / "libother.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    _, output = launch("import magi_attention.api", MAGI_ATTENTION_LIBRARY=str(library))
    last = output.splitlines()[-1]
    assert last.startswith(f"ImportError: {library} is not this package's libmagi: "), output


def test_a_library_without_its_module(tmp_path):
    package = pathlib.Path(magi_attention.__file__).parent
    library = tmp_path / "libmagi.so"
    library.symlink_to(os.environ.get("MAGI_ATTENTION_LIBRARY") or package / "libmagi.so")
    code, output = launch("import magi_attention.api", MAGI_ATTENTION_LIBRARY=str(library))
    assert code == 1 and "_calls.abi3.so is missing" in output
