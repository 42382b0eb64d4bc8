# SPDX-License-Identifier: Apache-2.0
"""bench/dist_record.py: its parts, and which figures they leave."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
dist_record = pytest.importorskip(
    "dist_record", reason="the benches are not here", exc_type=ModuleNotFoundError
)


def test_parts_are_listed_and_every_must_has_one(tmp_path, monkeypatch, capsys):
    given = ["dist_record.py", "--ranks", "8", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*given, "--list"])
    assert dist_record.main() == 0
    listed = capsys.readouterr().out
    for text in ("rows-8k", "left", "writes llama.json", "min in 2 runs  all masks, 32,768"):
        assert text in listed
    monkeypatch.setattr(sys, "argv", [*given, "--figures", str(tmp_path / "rows.json")])
    assert dist_record.main() == 4
    missing = [line for line in capsys.readouterr().out.splitlines() if "missing: " in line]
    assert any("dist8.full.forward.8k" in line for line in missing)
    assert all("missing: part " in line and line.endswith(" is left") for line in missing)
