# SPDX-License-Identifier: Apache-2.0
"""examples/llama_cp: its checks, its text, and a short training of every run."""

import itertools
import json
import pathlib
import re
import sys

import pytest
import torch

from ranks import launch

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "llama_cp"
sys.path.insert(0, str(FOLDER))

import chart  # noqa: E402
import compare  # noqa: E402
import long  # noqa: E402
import text as llama_text  # noqa: E402
import train  # noqa: E402
from runs import Run  # noqa: E402

SDPA = [Run("plain", "math"), Run("plain", "efficient")]
MAGI, LEAKY = Run("plain", "magi", 2), Run("plain", "leaky")


def curves(magi: float, leaky: float) -> compare.Curves:
    """Distances from the first run of SDPA; the noise is 1e-3."""
    shifts = zip((*SDPA, MAGI, LEAKY), (0.0, 1e-3, magi, leaky))
    return {run: [3.0 + shift, 2.0 + shift] for run, shift in shifts}


@pytest.mark.parametrize(
    "magi, leaky, failures", [(2e-3, 1.0, 0), (-1.9e-3, 1.0, 0), (4e-3, 1.0, 1), (0.0, 1e-3, 1)]
)
def test_curves_are_told_apart(magi, leaky, failures):
    reporter = train.Reporter(is_talking=False)
    train.check_curves(curves(magi, leaky), reporter)
    assert reporter.failures == failures


def test_noise_of_equal_runs_is_rounding():
    equal = {run: [4.0, 4.0] for run in SDPA}
    assert compare.noise(equal) == pytest.approx(4 * 2**-23)


def test_losses_must_be_finite_and_fall():
    for curve, failures in (([3.0] * 20 + [2.0], 0), ([3.0] * 21, 1), ([3.0, float("nan")], 1)):
        reporter = train.Reporter(is_talking=False)
        train.check_learning({MAGI: curve}, reporter)
        assert reporter.failures == failures


def test_gradient_errors():
    wanted = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([1.0])}
    found = {"a": torch.tensor([1.0, -3.0]), "b": torch.tensor([1.1])}
    assert compare.gradient_errors(found, wanted) == (0.25, "a")


def test_text():
    text, again = llama_text.Text(200, 5), llama_text.Text(200, 5)
    for index in range(5):
        packed = text.sequence(index)
        assert torch.equal(packed.ids, again.sequence(index).ids)
        bounds = packed.bounds.tolist()
        assert bounds[0] == 0 and bounds[-1] == 200 == len(packed.ids)
        for begin, end in itertools.pairwise(bounds):
            assert begin < end and packed.ids[begin] == 0
            assert torch.equal(packed.targets[begin : end - 1], packed.ids[begin + 1 : end])
            assert packed.targets[end - 1] == llama_text.IGNORED
            assert torch.equal(packed.positions[begin:end], torch.arange(end - begin))
    with pytest.raises(ValueError, match="this machine has"):
        llama_text.documents(1 << 40)


def test_chart():
    svg = chart.draw({"a <b>": [3.0, 2.0], "c": [3.0, 2.5]}, {"c"}, 1e-5, "losses")
    assert svg.startswith("<svg") and "a &lt;b&gt;" in svg and svg.count("<polyline") == 3
    long = chart.draw({"a": [3.0, 2.0] * 150}, set(), 1e-5, "losses")
    assert all(f">{step}</text>" in long for step in range(0, 300, 50)) and ">37<" not in long


def test_arguments():
    for wrong in (["--models", "other"], ["--steps", "0"]):
        with pytest.raises(SystemExit) as stopped:
            train.parse(wrong)
        assert stopped.value.code == 2


@pytest.mark.parametrize(
    "ranks, options",
    [(2, ["--models", "plain,transformers"]), (0, ["--models", "plain", "--fsdp", "--ranks", "2"])],
    ids=str,
)
def test_two_ranks(tmp_path, ranks, options):
    """torchrun's processes, and those that the program starts."""
    if "transformers" in options[1]:
        pytest.importorskip("transformers", minversion="5")
    options = [*options, "--steps", "2", "--cpu", "--out", str(tmp_path)]
    code, output = launch(FOLDER / "train.py", *options, ranks=ranks)
    assert code == 0, output
    assert "FAIL" not in output and "plain, cp 2" in output
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert len(losses["plain, cp 1"]) == 2
    assert (tmp_path / "losses.svg").read_text().startswith("<svg")


def test_exit_code_of_a_failed_check(tmp_path):
    program = (
        f"import sys; sys.path.append({str(FOLDER)!r}); import compare, train; "
        "compare.GRADIENT_TOLERANCE = -1.0; train.main()"
    )
    options = ["--steps", "1", "--models", "plain", "--cpu", "--out", str(tmp_path)]
    code, output = launch(program, *options, ranks=1)
    assert code == 1 and "FAIL  plain, cp 1" in output, output


def test_long_sequences_go_on_where_they_were(tmp_path):
    out = tmp_path / "llama.json"
    given = ["--cpu", "--tokens", "128", "--steps", "5", "--out", str(out)]

    def run(*options) -> str:
        code, output = launch(FOLDER / "long.py", *given, *options, ranks=2)
        assert code == 0, output
        return output

    run("--minutes", "0.0001")  # one run: how long another takes is known behind it
    assert list(json.loads(out.read_text())["runs"]) == ["cp 1"]
    assert re.findall("^(cp .*?)  ", run(), re.MULTILINE) == ["cp 1, reversed", "cp 2"]
    found = json.loads(out.read_text())
    assert list(found["runs"]) == ["cp 1", "cp 1, reversed", "cp 2"]
    assert all(len(run["losses"]) == 5 for run in found["runs"].values())
    assert found["runs"]["cp 2"]["tokens_per_second"] > 0
    assert found["compared"]["over_noise"] <= compare.MARGIN


def test_distances_of_long_runs():
    curves = {"cp 1": [3.0, 2.0], long.REVERSED: [3.001, 2.001], "cp 2": [3.002, 2.002]}
    assert long.distance_of(curves)["over_noise"] == pytest.approx(2)
    assert long.distance_of(curves | {"cp 4": [3.0, 2.1]})["over_noise"] > 50
    curves[long.REVERSED] = curves["cp 1"]
    assert long.distance_of(curves)["noise"] == pytest.approx(13**0.5 / 2**0.5 * 2**-23)


def test_bad_arguments_of_long_runs(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    for options, text in (
        (["--steps", "0"], "--steps is 0; allowed: 1 or more"),
        (["--tokens", "8"], "--tokens is 8; allowed: 64 or more"),
        ([], "RANK is not set; allowed: ranks that torchrun started"),
    ):
        monkeypatch.setattr(sys, "argv", ["long.py", "--out", "runs.json", *options])
        with pytest.raises(SystemExit) as stopped:
            long.parse()
        assert stopped.value.code == 2 and text in capsys.readouterr().err
