# SPDX-License-Identifier: Apache-2.0
"""The command that compares random sparse masks with float64: its tally, and what it does where a
case is off.
"""

import argparse
import dataclasses
import random

import pytest

import sparse_masks


def options(**given):
    made = dict(cases=3, seed=7, device="cpu", processes=1, seconds=600.0, tally=None)
    return argparse.Namespace(**made | given)


def test_a_run_goes_on_behind_its_tally(tmp_path):
    path = str(tmp_path / "tally.json")
    assert sparse_masks.read_tally(path, 7) == 0
    assert sparse_masks.run(options(tally=path), 0) == 3
    assert sparse_masks.read_tally(path, 7) == 3
    assert sparse_masks.run(options(tally=path, seconds=0.0, cases=9), 3) == 3


def test_a_tally_of_another_seed_is_refused(tmp_path):
    path = str(tmp_path / "tally.json")
    sparse_masks.write_tally(path, 7, 40)
    with pytest.raises(SystemExit, match="--seed is 8; allowed: 7"):
        sparse_masks.read_tally(path, 8)


def test_results_that_do_not_repeat_are_found():
    """Cases of both modes; in the deterministic one the second call is off."""
    modes = []
    for seed in range(12):
        generator = random.Random(seed)
        case = sparse_masks.random_case(generator)
        calls = []

        def drift(*qkv, case=case, calls=calls, **options):
            out, meta = case.call(*qkv, **options)
            calls.append(options["deterministic"])
            return (out + 1 if len(calls) == 2 else out), meta

        changed = dataclasses.replace(case, call=drift)
        try:
            sparse_masks.check(changed, generator)
            assert calls == [False]
        except AssertionError as error:
            assert calls == [True, True] and "out differs when it is repeated" in str(error)
        modes.append(calls[0])
    assert set(modes) == {False, True}


def test_the_first_seed_that_fails_is_told(monkeypatch, capsys):
    def fail_once(case, generator, device):
        seen.append(case)
        assert len(seen) < 3, "out is off"

    seen: list = []
    monkeypatch.setattr(sparse_masks, "check", fail_once)
    assert sparse_masks.check_seeds(range(10, 20), "cpu") == 12
    assert "seed 12 fails: AssertionError: out is off" in capsys.readouterr().out
    assert len(seen) == 3
