# SPDX-License-Identifier: Apache-2.0
"""examples/sparse: its layers know no later row, choose what they say, and learn."""

import json
import pathlib
import sys

import pytest
import torch

from ranks import launch

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "sparse"
sys.path.append(str(FOLDER))

import layers  # noqa: E402

SIZES = layers.Sizes(dim=32, heads=4, heads_kv=2, block=8, kept=2, window=10)


def layer_of(kind):
    torch.manual_seed(1)
    return layers.KINDS[kind](SIZES)


@pytest.mark.parametrize("rows", [5, 8, 60])
@pytest.mark.parametrize("kind", sorted(layers.KINDS))
def test_no_row_knows_a_later_one(kind, rows):
    layer = layer_of(kind)
    x = torch.randn(rows, SIZES.dim)
    whole = layer(x)
    for end in {1, rows // 2, rows - 1}:
        changed = torch.cat((x[:end], torch.randn(rows - end, SIZES.dim)))
        assert torch.allclose(layer(changed)[:end], whole[:end], atol=1e-6)


@pytest.mark.parametrize("kind", sorted(layers.KINDS))
def test_all_parameters_learn(kind):
    layer = layer_of(kind)
    layer(torch.randn(60, SIZES.dim)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_all_blocks_kept_is_dense():
    """MoBA that keeps as many blocks as there are sees what dense attention sees."""
    torch.manual_seed(1)
    moba = layers.Moba(layers.Sizes(dim=32, heads=4, heads_kv=2, block=8, kept=8))
    dense = layers.Dense(moba.sizes)
    dense.load_state_dict(moba.state_dict())
    x = torch.randn(60, 32)
    assert torch.allclose(moba(x), dense(x), atol=1e-6)


def test_best_blocks():
    """Blocks of two rows; a block is there for the queries behind it."""
    scores = torch.tensor([3.0, 1.0, 2.0]).expand(6, 1, 3)
    found = layers.best_blocks(scores, 2, 2)[:, 0].tolist()
    assert found == [[-1, -1], [-1, -1], [0, -1], [0, -1], [0, 1], [0, 1]]


def test_short_training(tmp_path):
    """A few steps run, write their losses, and tell that they fell too little."""
    options = ("--steps", "2", "--rows", "64", "--out", str(tmp_path))
    code, output = launch(FOLDER / "train.py", *options)
    assert code == 1 and "nsa: the loss fell from" in output, output
    losses = json.loads((tmp_path / "losses.json").read_text(encoding="utf-8"))
    assert {kind: len(curve) for kind, curve in losses.items()} == dict.fromkeys(layers.KINDS, 2)
