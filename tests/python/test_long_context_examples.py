# SPDX-License-Identifier: Apache-2.0
"""examples/long_context: over two ranks each recipe has the losses of one."""

import pathlib
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "long_context"
sys.path.append(str(FOLDER))

import recipe  # noqa: E402

TINY = ["--cpu", "--tokens", "160", "--steps", "3", "--rate", "1e-3"]


def by_pytorch(group, *more: str) -> list[float]:
    import pytorch_fsdp

    return pytorch_fsdp.train(pytorch_fsdp.parse([*TINY, *more]), group, torch.device("cpu"))


def check(ranks, case, *more: str) -> list[float]:
    """Losses of one rank, which those of two are equal to, and which fall."""
    alone, shared = (ranks.run(size, case, *more)[0] for size in (1, 2))
    assert shared == pytest.approx(alone, abs=2e-6)
    assert alone == sorted(alone, reverse=True) and alone[-1] < alone[0] - 0.05
    return alone


def test_pytorch(ranks, tmp_path):
    """With random weights; those of a folder have the loss that transformers gives them."""
    transformers = pytest.importorskip("transformers", minversion="5")
    check(ranks, by_pytorch)
    import pytorch_fsdp

    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**pytorch_fsdp.SMALL))
    model.save_pretrained(tmp_path)
    given = pytorch_fsdp.parse([*TINY, "--steps", "1"])
    (packed,) = recipe.sequences(given, torch.device("cpu"))
    lengths = packed.bounds.diff().tolist()
    logits = [model(ids[None]).logits[0] for ids in packed.ids.split(lengths)]
    wanted = cross_entropy(torch.cat(logits), packed.targets, ignore_index=recipe.IGNORED)
    found = ranks.run(2, by_pytorch, "--steps", "1", "--weights", str(tmp_path))[0]
    assert found == pytest.approx([wanted.item()], abs=2e-6)
