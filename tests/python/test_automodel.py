# SPDX-License-Identifier: Apache-2.0
"""NeMo Automodel's module on this package, over ranks."""

from __future__ import annotations

import contextlib
import itertools

import pytest

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("einops", reason="einops is not installed")
pytest.importorskip("nemo_automodel", reason="nemo-automodel is not installed")

import nemo_automodel.components.distributed.context_parallel.magi as automodel
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import test_packed as packed
import test_packed_models as sequences
import test_transformers as models
from magi_attention.integrations import transformers as ours
from ranks import over

INTERFACES = AttentionInterface, AttentionMaskInterface
OF_TRANSFORMERS = {"model.attn_implementation": "magi"}
OF_ONES_OWN = {"model.backend.attn": "magi"}


@contextlib.contextmanager
def name_of_automodel(has_ours_before: bool = False):
    """The name "magi" belongs to Automodel inside, as in a process that never imported our adapter
    or as in one that did; afterwards all is as it was.
    """
    before = [dict(interface._global_mapping) for interface in INTERFACES]
    if not has_ours_before:
        for interface in INTERFACES:
            interface._global_mapping.pop(ours.NAME, None)
    automodel._MAGI_REGISTERED = False
    try:
        yield
    finally:
        for interface, mapping in zip(INTERFACES, before):
            interface._global_mapping.clear()
            interface._global_mapping.update(mapping)
        automodel.set_active_cp_group(None)
        automodel.set_active_attn_spec(None)


def state_of(group, config: dict, domain: str = "llm"):
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("cp",))
    state = automodel.setup_magi(config, mesh, domain=domain)
    assert state.enabled and state.cp_group.size() == dist.get_world_size(group)
    return state


def sums(group, tensors) -> list[torch.Tensor]:
    found = [tensor.detach().clone() for tensor in tensors]
    for tensor in found:
        dist.all_reduce(tensor, group=group)
    return found


def near(found, wanted) -> None:
    """Losses, then gradients, within the rounding of bfloat16."""
    assert abs(found[0] - wanted[0]) < 1e-2 * abs(wanted[0]), (found[0], wanted[0])
    for gradient, other in zip(found[1:], wanted[1:], strict=True):
        assert (gradient - other).abs().max() < 3e-2 * max(other.abs().max(), 1e-3)


@over(1, 2, 4)
@pytest.mark.parametrize("has_ours_before", [False, True], ids=["alone", "beside_ours"])
def test_one_sequence(group, has_ours_before: bool):
    """model.attn_implementation: magi. One causal sequence of any length."""
    batch = sequences.causal_batch()
    alone = models.model("llama", "sdpa")
    wanted = models.loss_of(alone(input_ids=batch["input_ids"]).logits, batch["labels"])
    wanted.backward()
    with name_of_automodel(has_ours_before):
        state = state_of(group, OF_TRANSFORMERS)
        assert ALL_ATTENTION_FUNCTIONS["magi"] is not ours.attention
        model = models.model("llama", "magi")
        local, indices = state.make_cp_batch(
            None, dict(batch), model=model, return_local_indices=True
        )
        assert torch.equal(indices, local["position_ids"])
        logits = model(
            input_ids=local["input_ids"], position_ids=local["position_ids"], use_cache=False
        ).logits
        loss = models.loss_of(logits, local["labels"])
        loss.backward()
    gradients = models.gradients(model)
    expected = models.gradients(alone)
    assert gradients.keys() == expected.keys()
    near(sums(group, (loss, *gradients.values())), (wanted.detach(), *expected.values()))


def thd_batch(lengths) -> dict:
    """Documents in one pack, as Automodel's collator of packed sequences gives them."""
    batch = packed.batch_of(lengths)
    found = {name: batch[name][None] for name in ("input_ids", "labels", "position_ids")}
    bounds = torch.tensor([[*lengths, -1000]])
    return {**found, "seq_lens": bounds, "seq_lens_padded": bounds.clone(), "qkv_format": "thd"}


def packed_documents(group, lengths) -> None:
    """model.backend.attn: magi. Attention is a function that the model calls; on one rank bounds of
    documents come with the call.
    """
    size = dist.get_world_size(group)
    model = packed.Model()
    with name_of_automodel():
        state = state_of(group, OF_ONES_OWN)
        attend = automodel.make_magi_attn_func()
        model.config = HeadsOfAConfig
        local = state.make_cp_batch(None, thd_batch(lengths), is_thd=True, model=model)
        bounds = {"cu_seqlens": local["cu_seqlens"]} if size == 1 else {}
        logits = model(
            local["input_ids"], local["position_ids"], lambda *qkv: attend(*qkv, **bounds)
        )
        loss = packed.loss_of(logits, local["labels"])
        loss.backward()
    spec = packed.AttnMaskSpec.varlen(lengths)
    batch = packed.batch_of(lengths)
    if size > 1:  # positions there are those of the whole sequence
        batch["position_ids"] = torch.arange(sum(lengths))
    wanted, gradients = packed.reference(batch, spec)
    near(sums(group, (loss, *packed.gradients(model))), (wanted, *gradients))


class HeadsOfAConfig:
    """What Automodel reads off a model."""

    num_attention_heads, num_key_value_heads, head_dim = packed.HEADS


@over(1)
def test_prefix_tree(group):
    """A prompt and its completions, which Automodel runs on one rank; rows are no multiple of 8."""
    nodes, paths = [19, 8, 1, 13], [[0, 1], [0, 2], [0, 3]]
    rows = sum(nodes)
    batch = packed.batch_of(nodes)
    starts = itertools.accumulate(nodes[:-1])
    batch["labels"][: nodes[0]] = -100
    batch["position_ids"][nodes[0] :] += nodes[0]
    assert list(starts)[-1] + nodes[-1] == rows and rows % 8
    given = {name: batch[name][None] for name in ("input_ids", "labels", "position_ids")}
    model = packed.Model()
    with name_of_automodel():
        state = state_of(group, OF_ONES_OWN)
        attend = automodel.make_magi_attn_func()
        local = state.make_cp_batch(None, {**given, "prefix_tree": (nodes, paths)}, model=model)
        loss = packed.loss_of(
            model(local["input_ids"], local["position_ids"], attend), local["labels"]
        )
        loss.backward()
        # The next batch has no tree and is one causal sequence again.
        local = state.make_cp_batch(None, dict(given), model=model)
        again = packed.Model()
        causal = packed.loss_of(
            again(local["input_ids"], local["position_ids"], attend), local["labels"]
        )
        causal.backward()
    spec, _ = packed.AttnMaskSpec.prefix_tree(nodes, paths)
    wanted, gradients = packed.reference(batch, spec)
    near([loss.detach(), *packed.gradients(model)], [wanted, *gradients])
    wanted, gradients = packed.reference(batch, packed.AttnMaskSpec.causal(rows))
    near([causal.detach(), *packed.gradients(again)], [wanted, *gradients])


@over(1)
def test_images(group):
    """A model with images on one rank: its language model alone attends through the package."""
    found = []
    for implementation in ("sdpa", "magi"):
        model, batch = sequences.model_with_images()
        with name_of_automodel():
            state = state_of(group, OF_TRANSFORMERS, domain="vlm")
            model.set_attn_implementation(implementation)
            given = dict(batch)
            if implementation == "magi":
                given = state.make_cp_batch(None, given, model=model)
            logits = model(**given, use_cache=False).logits
            logits.square().sum().backward()
        found.append((logits.square().sum().detach(), *models.gradients(model).values()))
    near(found[1], found[0])


@over(1)
@pytest.mark.parametrize("lengths", [(17, 30, 13), (383,), (64, 32, 32)], ids=str)
def test_packed_documents(group, lengths):
    packed_documents(group, lengths)


@over(2, 4)
@pytest.mark.parametrize("lengths", [(64, 32, 32), (24, 40, 192)], ids=str)
def test_packed_documents_over_ranks(group, lengths):
    """Their labels of padding rows are 0, so that they need rows without padding."""
    packed_documents(group, lengths)
