# SPDX-License-Identifier: Apache-2.0
"""Packed batches for models of transformers."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", minversion="5")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

import test_transformers as models
from dense import close, gradients
from magi_attention.integrations import packed
from magi_attention.integrations.packed import AttnMaskSpec, PrefixTree
from ranks import over, sum_over

ROWS = 61  # no multiple of anything


def causal_batch() -> dict:
    """One sequence; labels are those of rows."""
    ids = torch.randint(models.VOCABULARY, (1, ROWS), generator=torch.Generator().manual_seed(2))
    labels = ids.roll(-1, 1)
    labels[0, -1] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def compare(group, name: str, run, wanted_logits) -> None:
    """The sums over ranks of run(model)'s loss and gradients are those of the reference."""
    alone = models.model(name, "sdpa" if name in ("llama", "mistral") else "eager")
    wanted = models.loss_of(wanted_logits(alone), causal_batch()["labels"])
    wanted.backward()
    model = models.model(name, "magi")
    loss = run(model)
    loss.backward()
    loss, found = loss.detach().clone(), gradients(model)
    sum_over(group, loss, *found.values())
    allowed = models.tolerance(name)
    assert abs(loss - wanted) <= allowed * abs(wanted)
    close(found, gradients(alone), allowed)


def one_sequence(group, name: str) -> None:
    """Windows come from the model's config, for each type of layer."""
    batch = causal_batch()

    def run(model):
        mesh = (
            None if group is None else DeviceMesh.from_group(group, "cpu", mesh_dim_names=("cp",))
        )
        state = packed.setup_magi({"model.attn_implementation": "magi"}, mesh)
        assert state.hf_dispatch
        _, local = state.prepare_llm_batch(model, batch, pad_id=5)
        labels = local.pop("labels")
        return models.loss_of(model(**local).logits, labels)

    compare(group, name, run, lambda alone: alone(input_ids=batch["input_ids"]).logits)


@over(1, 2, 4)
def test_tree_of_samples(group):
    """A prefix tree through a model of transformers: the loss of the samples alone. Its norms are
    float32, where other rows in a product round otherwise.
    """
    tree = PrefixTree([9, 20, 12, 20], [[0, 1], [0, 2, 3], [0, 2]])
    ids = causal_batch()["input_ids"]
    model, alone = models.model("llama", "magi"), models.model("llama", "sdpa")
    local, _ = packed.magi_prepare_prefix_tree(model, {"input_ids": ids}, tree, group)
    labels, weights = local.pop("labels"), local.pop("loss_weights")
    loss = packed.branch_loss(model(**local).logits, labels, weights)
    loss.backward()
    loss, found = loss.detach().clone(), gradients(model)
    sum_over(group, loss, *found.values())
    wanted = 0.0
    for ranges in tree.sample_token_ranges:
        sample = torch.cat([ids[:, begin:end] for begin, end in ranges], 1)
        logits = alone(input_ids=sample).logits[0, :-1]
        wanted = wanted + F.cross_entropy(logits, sample[0, 1:], reduction="sum")
    wanted.backward()
    assert abs(loss - wanted) < 1e-7 * wanted
    close(found, gradients(alone))


@over(1, 2, 4)
def test_documents_of_a_state(group):
    """Models of transformers: documents by their bounds, and by whatever else says them."""
    lengths, batch = torch.tensor([20, 41]), causal_batch()
    batch["position_ids"] = torch.cat((torch.arange(20), torch.arange(41)))[None]
    numbers = torch.repeat_interleave(torch.arange(1, 3), lengths)[None]
    told = [{"attention_mask": numbers}, {"seq_idx": numbers - 1}, {"seq_lengths": lengths}, {}]
    _documents_by(group, {**batch, "cu_seqlens": torch.tensor([0, 20, ROWS])}, is_thd=True)
    for one in told:
        _documents_by(group, {**batch, **one})


def _documents_by(group, batch, is_thd=False) -> None:
    state = packed.MagiState(True, False, group, 1 if group is None else dist.get_world_size(group))
    spec = AttnMaskSpec.varlen([20, 41])

    def run(model):
        _, local = state.prepare_llm_batch(model, batch, is_thd=is_thd)
        labels = local.pop("labels")
        return models.loss_of(model(**local).logits, labels)

    def reference(alone):
        q, k, types = spec.ranges()
        kinds = [1] * len(types)
        slices = q.to_naive_ranges(), k.to_naive_ranges(), kinds
        visible = models.dense.Mask(*slices, ROWS, ROWS).multiplicity().bool()[None, None]
        ids, positions = batch["input_ids"], batch["position_ids"]
        return alone(input_ids=ids, position_ids=positions, attention_mask=visible).logits

    compare(group, "llama", run, reference)


def model_with_images():
    """A model with images in float64, and a batch of it; equal calls give equal weights."""
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        image_size=8, patch_size=4,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=LlamaConfig(**models._SIZES), image_token_id=60
    )
    pixels = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    ids = causal_batch()["input_ids"] % 60
    ids[0, 7:11] = 60
    torch.manual_seed(3)
    model = LlavaForConditionalGeneration(config).double().eval()
    return model, {"input_ids": ids, "pixel_values": pixels}


def test_images():
    """A model with images on one rank: its language model runs under a causal plan, its vision
    tower as with "sdpa".
    """
    found = []
    for implementation in ("sdpa", "magi"):
        model, given = model_with_images()
        model.set_attn_implementation(implementation)
        if implementation == "magi":
            _, given = packed.MagiState(True).prepare_vlm_batch(model, given)
            causal, seen = given["magi_plan"], []
            given["magi_plan"] = lambda *shape: seen.append(shape) or causal(*shape)
        logits = model(**given).logits
        logits.square().sum().backward()
        found.append((logits.detach(), gradients(model)))
    (wanted, wanted_gradients), (logits, ours) = found
    assert seen == [(ROWS, (4, 2, 8, 8))] * 2  # of each layer of the language model
    assert (logits - wanted).abs().max() < 1e-9
    close(ours, wanted_gradients, 1e-7)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_one_process(name):
    one_sequence(None, name)


@over(2, 4)
@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_ranks(group, name):
    one_sequence(group, name)


def test_documents_beside_images():
    ids = torch.zeros(1, 5, dtype=torch.int64)
    given = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 0, 1, 2]])}
    plan = packed.magi_prepare_vlm(None, given, None)[0]["magi_plan"]
    assert plan(5, (2, 2, 8)).reach == (2, 0)
    with pytest.raises(ValueError, match="the language model has 9 rows; allowed: 5"):
        plan(9, (2, 2, 8))


@over(2)
def test_images_over_ranks(group):
    with pytest.raises(NotImplementedError, match="cp_group has 2 ranks; allowed: 1"):
        packed.magi_prepare_vlm(None, {"input_ids": torch.zeros(1, 3)}, group)
    batch = {"input_ids": torch.zeros(1, 9).long()}
    for other in ({"pixel_values": torch.zeros(1, 3, 8, 8)}, {"logits_to_keep": 1}):
        pattern = f"{next(iter(other))}, which is not shared out over 2"
        with pytest.raises(ValueError, match=pattern):
            packed.magi_prepare_batch((2, 2, 8), {**batch, **other}, group)
