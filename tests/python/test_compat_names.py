# SPDX-License-Identifier: Apache-2.0
"""Every public name, argument and variable of MagiAttention 1.1.1 and of later releases works but
for those in MISSING, which are refused by name or are not there.
"""

import importlib
from pathlib import Path

import pytest

import compat_names
import magi_attention
from magi_attention.compat import MOVED
from magi_attention.utils import nvtx, sparse_utils

MISSING: set[str] = set()


def test_all_but_these_work():
    total, broken = compat_names.count()
    assert broken.keys() - MISSING == set(), broken
    assert MISSING - broken.keys() == set(), "these work now"
    assert total > 1110


def test_wrong_names_count(monkeypatch):
    """A name that is not there, a wrong signature and a refused variable do not work."""
    rows = {
        "api_names.tsv": [["magi_attention.api", "dispach", "export"]],
        "compat_names.tsv": [["magi_attention.api", "dispatch", "function", "(x, key, value)"]],
        "compat_arguments.tsv": [["later", "unknown", "1"]],
        "compat_variables.tsv": [["later", "MAGI_ATTENTION_KERNEL_BACKEND", "fa9"],
                                 ["later", "MAGI_ATTENTION_UNHEARD_OF", "1"]],
    }  # fmt: skip
    monkeypatch.setattr(compat_names, "rows_of", rows.__getitem__)
    total, broken = compat_names.count()
    assert total == len(broken) == 8
    assert broken["MAGI_ATTENTION_UNHEARD_OF=1"] == "not in docs/environment.md"


def test_each_moved_module_has_a_stub():
    package = Path(magi_attention.__file__).parent
    stubs = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.pyi")
    }
    assert stubs.keys() == MOVED.keys()
    for name, path in stubs.items():
        told = path.read_text(encoding="utf-8").splitlines()[1:]
        home = MOVED[name]
        assert told == ([f"from magi_attention.{home} import *"] if home else []), name


def test_moved_modules_are_those_beside_their_names():
    for name, home in MOVED.items():
        module = importlib.import_module(f"magi_attention.{name}")
        assert not home or module is importlib.import_module(f"magi_attention.{home}"), name
        assert not home or module.__spec__.name == f"magi_attention.{home}"
    with pytest.raises(ModuleNotFoundError, match=r"magi_attention\.meta\.container"):
        importlib.import_module("magi_attention.meta.container")
    assert nvtx.instrument_nvtx and sparse_utils.choose_ref_block
