# SPDX-License-Identifier: Apache-2.0
"""examples/long_context/trl_sft.py: ranks that share batches have the losses of one process."""

import json
import pathlib
import sys
from unittest import mock

import pytest

pytest.importorskip("trl", reason="trl is not installed")

import trainer_cases as cases
from magi_attention.training import Offload

SAVE = Offload.save_attention
NAMES = {"loss", "mean_token_accuracy", "eval_loss", "eval_mean_token_accuracy"}
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples/long_context"))


def run(folder: pathlib.Path, *options: str) -> list[dict]:
    """What the trainer logged of the steps and of the evaluation."""
    options = ("--steps", "2", "--rate", "1e-3", *options)
    command = ["trl_sft.py", "--small", "--tokens", "256", "--folder", str(folder), *options]
    with mock.patch.object(sys, "argv", command):
        import trl_sft

        trl_sft.main()
    state = json.loads((folder / "checkpoint-2/trainer_state.json").read_text(encoding="utf-8"))
    return state["log_history"]


def run_rank(world, *arguments) -> list[dict]:
    with cases.as_torchrun():
        return run(*arguments)


def same_losses(logged: list[dict], reference: list[dict]) -> None:
    assert len(reference) == 3
    for wanted, found in zip(reference, logged):
        for name in wanted.keys() & NAMES:
            assert found[name] == pytest.approx(wanted[name], rel=1e-4), name


@pytest.mark.parametrize("options", [(), ("--no-packing",)])
def test_losses(ranks, tmp_path, capsys, options):
    """Every layer of both steps keeps its attention; a line of each step tells the speed."""
    save = mock.patch.object(Offload, "save_attention", autospec=True, side_effect=SAVE)
    with save as kept:
        alone = run(tmp_path / "alone", *options)
    assert kept.call_count == 2 * 2 and capsys.readouterr().out.count(" tokens/s, ") == 2
    shared = ranks.run(4, run_rank, tmp_path / "shared", "--cp-size", "4", *options)[0]
    same_losses(shared, alone)


@pytest.mark.parametrize("options", [(), ("--no-packing",)])
def test_planned_batches(ranks, tmp_path, options):
    """Ranks that share planned batches have the losses of replicas."""
    replicas = ranks.run(4, run_rank, tmp_path / "replicas", *options, "--cp-size", "1")[0]
    planned = ranks.run(4, run_rank, tmp_path / "planned", *options, "--plan-batches")[0]
    same_losses(planned, replicas)
