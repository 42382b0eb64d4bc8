# SPDX-License-Identifier: Apache-2.0
"""The command that compares random sparse masks with float64 goes on behind its tally."""

import argparse

import sparse_masks


def test_a_run_goes_on_behind_its_tally(tmp_path):
    path = str(tmp_path / "tally.json")
    given = dict(seed=7, device="cpu", processes=1, seconds=600.0, tally=path)
    assert sparse_masks.read_tally(path, 7) == 0
    assert sparse_masks.run(argparse.Namespace(cases=3, **given), 0) == 3
    assert sparse_masks.read_tally(path, 7) == 3
    given["seconds"] = 0.0
    assert sparse_masks.run(argparse.Namespace(cases=9, **given), 3) == 3
