# SPDX-License-Identifier: Apache-2.0
"""bench/dist_record.py: its parts, and which figures they leave."""

import json
import pathlib
import sys
from types import SimpleNamespace

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
dist_record = pytest.importorskip(
    "dist_record", reason="the benches are not here", exc_type=ModuleNotFoundError
)
from distributed import host, record, sides  # noqa: E402


def test_parts_are_listed_and_every_must_has_one(tmp_path, monkeypatch, capsys):
    given = ["dist_record.py", "--ranks", "8", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*given, "--list"])
    assert dist_record.main() == 0
    listed = capsys.readouterr().out
    for text in ("rows-8k", "left", "writes llama.json", "min in 5 runs  all masks, 32,768"):
        assert text in listed
    monkeypatch.setattr(sys, "argv", [*given, "--figures", str(tmp_path / "rows.json")])
    assert dist_record.main() == 4
    missing = [line for line in capsys.readouterr().out.splitlines() if "missing: " in line]
    assert any("dist8.full.forward.8k" in line for line in missing)
    assert all("missing: part " in line and line.endswith(" is left") for line in missing)


def made(kind: str, tflops: float) -> dict:
    """A side of a cell."""
    of_pass = {"tflops": tflops, "share": 1.0, "ms": 1.0}
    return dict(
        kind=kind, forward=of_pass, backward=of_pass, is_moving_queries=True, memory_ratio=1
    )


def write_cells(command: list) -> None:
    """What a part's command would measure, if it is of cells."""
    if "--settings" not in command:
        return
    pairs = zip(map(str, command), map(str, command[1:]))
    given = {name: value.split(",") for name, value in pairs if name.startswith("--")}
    names = [f"{name}+work={work}".removesuffix("+work=keys")
             for name in given["--settings"] for work in given.get("--work", ["keys"])]  # fmt: skip
    made_sides = {name: made("ours", 500) for name in names}
    made_sides |= {
        name: made("baseline", 450 if name == "ulysses_fa4" else 400)
        for name in given["--sides"] if name
    }  # fmt: skip
    ranks = int(*given["--nproc-per-node"])
    cells = [
        dict(mask=mask, tokens=int(tokens), ranks=ranks, failed={}, sides=made_sides)
        for mask in given["--masks"] for tokens in given["--tokens"]
    ]  # fmt: skip
    pathlib.Path(*given["--out"]).write_text("\n".join(map(json.dumps, cells)))


@pytest.mark.parametrize("ranks", dist_record.RANKS)
def test_parts_make_every_must(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "is_usable", lambda name: True)
    setup = dist_record.Setup(ranks, dist_record.ON_GPUS, tmp_path, tmp_path)
    for part in dist_record.make_parts(setup).values():
        for make_command in part.commands:
            write_cells(make_command(1))
    rows = record.rows_of(setup)
    assert set(record.missing_of(setup, rows).values()) == {"part host is left"}
    of_fastest = {row["name"]: row["value"] for row in rows}[f"dist{ranks}.over_ulysses.forward"]
    assert of_fastest == 1.1111  # not 500 / 400
    # Host times take a GPU, their names do not.
    monkeypatch.setattr(host, "new_mask_ms", lambda *_: {"first_call": 1, "plan8": 1, "plan": 1})
    monkeypatch.setattr(host, "host_us", lambda *_: {"host": 1, "floor": 1})
    options = SimpleNamespace(shape=(), dtype=None, device=SimpleNamespace(type="cuda"))
    rows += host.figures(None, SimpleNamespace(size=lambda: ranks), options)
    assert record.missing_of(setup, rows) == {}
    monkeypatch.setattr(record, "musts", lambda: [f"dist{ranks}.round.forward.8k"])
    assert [*record.missing_of(setup, rows).values()] == ["no part measures it"]
