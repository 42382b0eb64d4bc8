# SPDX-License-Identifier: Apache-2.0
"""What models of transformers compute over rows besides attention and sums over tokens."""

from __future__ import annotations

from unittest import mock

import pytest

pytest.importorskip("transformers", minversion="5")

import torch
import torch.distributed as dist

import model_zoo
from magi_attention.integrations import transformers as ours
from ranks import over

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
    "rope_theta": 1e4, "original_max_position_embeddings": 16,
}  # fmt: skip
MSCALES = {"short_mscale": 1.0, "long_mscale": 1.5}
ROPE = {
    "llama": {"rope_parameters": DYNAMIC, "max_position_embeddings": 12},
    "phi3": {"rope_parameters": LONG, "original_max_position_embeddings": 16},
    "phimoe": {"rope_parameters": {**LONG, **MSCALES}},
    "deepseek_v2": {"rope_parameters": DYNAMIC, "max_position_embeddings": 12},
    "gemma3_text": {
        "rope_parameters": {
            "full_attention": DYNAMIC,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 12,
    },
}  # fmt: skip


def make(model_type: str, changes: dict) -> torch.nn.Module:
    """A model of the zoo with changes to its configuration."""
    before = model_zoo._SPECIAL.get(model_type, {})
    with mock.patch.dict(model_zoo._SPECIAL, {model_type: {**before, **changes}}):
        return model_zoo.make(model_type)


def results(loss, model) -> dict[str, torch.Tensor]:
    loss.backward()
    return {"loss": loss.detach().double(), **model_zoo.gradients(model)}


def alone(model_type: str, changes: dict) -> dict[str, torch.Tensor]:
    model = make(model_type, changes)
    model.set_attn_implementation("eager")
    ids, labels, positions = model_zoo.labelled()
    given = dict(position_ids=positions, num_items_in_batch=model_zoo.TOKENS, use_cache=False)
    return results(model(input_ids=ids, labels=labels, **given).loss, model)


def check_over_ranks(group, model_type: str, changes: dict, is_compiled: bool = False):
    """Losses and gradients of ranks add up to those of one process."""
    ours.register()
    model = make(model_type, changes)
    model.set_attn_implementation("magi")
    plans = model_zoo.plans_of_documents(model, model_zoo.DOCUMENTS, group)
    first = next(iter(plans.values())) if isinstance(plans, dict) else plans
    arguments = ours.shard(first, *model_zoo.labelled(), model)
    arguments["magi_plan"] = plans
    call = torch.compile(model, fullgraph=True, backend="aot_eager") if is_compiled else model
    found = results(call(**arguments, num_items_in_batch=model_zoo.TOKENS).loss, model)
    wanted = alone(model_type, changes)
    for name, value in wanted.items():
        total = found.get(name, torch.zeros_like(value))
        dist.all_reduce(total, group=group)
        assert model_zoo.error_of(total, value) < 1e-6, (name, model_zoo.error_of(total, value))


@over(3)
@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_balance_of_routers(group, model_type):
    """32 rows over 3 ranks: one has rows of padding."""
    check_over_ranks(group, model_type, {"output_router_logits": True})


@over(4)
@pytest.mark.parametrize("model_type", ROPE)
def test_tables_by_largest_position(group, model_type):
    check_over_ranks(group, model_type, ROPE[model_type])


@over(2)
def test_tables_in_one_graph(group):
    check_over_ranks(group, "phi3", ROPE["phi3"], is_compiled=True)
