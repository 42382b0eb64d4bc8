# SPDX-License-Identifier: Apache-2.0
"""examples/long_context/trl_sft.py: ranks that share batches have the losses of one process."""

import json
import pathlib
import runpy
import sys
from unittest import mock

import pytest

pytest.importorskip("trl", reason="trl is not installed")

import trainer_cases as cases

NAMES = {"loss", "mean_token_accuracy", "eval_loss", "eval_mean_token_accuracy"}
PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples/long_context/trl_sft.py"


def run(folder: pathlib.Path, *options: str) -> list[dict]:
    """What the trainer logged of the steps and of the evaluation."""
    command = [str(PROGRAM), "--rows", "256", "--steps", "2", "--out", str(folder), *options]
    with mock.patch.object(sys, "argv", command):
        runpy.run_path(str(PROGRAM), run_name="__main__")
    state = json.loads((folder / "checkpoint-2/trainer_state.json").read_text(encoding="utf-8"))
    return state["log_history"]


def run_rank(world, *arguments) -> list[dict]:
    with cases.as_torchrun():
        return run(*arguments)


@pytest.mark.parametrize("options", [(), ("--packing",)])
def test_losses(ranks, tmp_path, options):
    alone = run(tmp_path / "alone", *options)
    shared = ranks.run(4, run_rank, tmp_path / "shared", "--cp-size", "4", *options)[0]
    assert len(alone) == 3
    for wanted, found in zip(alone, shared):
        for name in wanted.keys() & NAMES:
            assert found[name] == pytest.approx(wanted[name], rel=1e-4), name


def test_planned_batches(ranks, tmp_path):
    """Ranks that share planned batches have the losses of replicas."""
    replicas = ranks.run(4, run_rank, tmp_path / "replicas")[0]
    planned = ranks.run(4, run_rank, tmp_path / "planned", "--plan-batches")[0]
    assert len(replicas) == 3
    for wanted, found in zip(replicas, planned):
        for name in wanted.keys() & NAMES:
            assert found[name] == pytest.approx(wanted[name], rel=1e-4), name
