# SPDX-License-Identifier: Apache-2.0
"""Packed batches for models of transformers."""

import pytest

pytest.importorskip("transformers", minversion="5")

import torch

import packed_model_cases as cases
from magi_attention.integrations import packed


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_one_process(name):
    cases.one_sequence(None, name)


@pytest.mark.parametrize("size, name", [(2, "mistral"), (4, "gemma2"), (4, "gpt_oss")])
def test_ranks(ranks, size, name):
    ranks.run(size, cases.one_sequence, name)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_trees_and_documents(ranks, size):
    ranks.run(size, cases.tree_of_samples)
    ranks.run(size, cases.documents_of_a_state)


def test_images():
    cases.images()


def test_documents_beside_images():
    ids = torch.zeros(1, 5, dtype=torch.int64)
    given = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 0, 1, 2]])}
    plan = packed.magi_prepare_vlm(None, given, None)[0]["magi_plan"]
    assert plan(5, (2, 2, 8)).reach == (2, 0)
    with pytest.raises(ValueError, match="the language model has 9 rows; allowed: 5"):
        plan(9, (2, 2, 8))


def test_images_over_ranks(ranks):
    ranks.run(2, images_over_ranks)


def images_over_ranks(group):
    with pytest.raises(NotImplementedError, match="cp_group has 2 ranks; allowed: 1"):
        packed.magi_prepare_vlm(None, {"input_ids": torch.zeros(1, 3)}, group)
    batch = {"input_ids": torch.zeros(1, 9).long()}
    for other in ({"pixel_values": torch.zeros(1, 3, 8, 8)}, {"logits_to_keep": 1}):
        with pytest.raises(
            ValueError, match=f"{next(iter(other))}, which is not shared out over 2"
        ):
            packed.magi_prepare_batch((2, 2, 8), {**batch, **other}, group)
