# SPDX-License-Identifier: Apache-2.0
"""Models whose layers attend to keys that an indexer chooses, under plans, beside one process with
transformers' own code, in float64.
"""

from unittest import mock

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")

import model_zoo as zoo
from magi_attention import Plan, masks
from magi_attention.integrations import _model_indexed as indexed
from magi_attention.integrations import transformers as ours
from ranks import over

MODELS = ("deepseek_v32", "glm_moe_dsa", "hy_v4", "axk2")
TOLERANCE = 1e-6  # norms of models compute in float32, whatever the model is of


def worst_error(group, model_type, documents, **options) -> float:
    """Of logits, loss and gradients. The models' own choice among equal scores is the first too, so
    that a model of few index heads, which give many keys the score 0, is compared as well.
    """
    lengths = mock.patch.multiple(zoo, DOCUMENTS=documents, TOKENS=sum(documents) - len(documents))
    with lengths, mock.patch.dict(zoo._SIZES, options):
        model = zoo.make(model_type)
        with indexed._FirstOfEqual():
            wanted, gradients = zoo._alone(model)
        logits, found, loss = zoo._under_a_plan(model, group)
        errors = [zoo.error_of(logits, wanted), zoo.error_of(loss, zoo.loss_of_tokens(wanted))]
        return max(errors + [zoo.error_of(found[name], g) for name, g in gradients.items()])


def worst_errors(group, models=MODELS) -> dict[str, float]:
    """Strips of a few rows, rows of padding, and lists that are longer than what a query sees."""
    ours.register()
    given = {"index_n_heads": 2, "index_topk": 4}
    with mock.patch.object(indexed, "_STRIP_SCORES", 300):
        return {name: worst_error(group, name, (13, 18), **given) for name in models}


@over(1, 2, 4)
def test_over_ranks(group):
    models = MODELS if group.size() == 4 else MODELS[group.size() :: 2]
    for model_type, error in worst_errors(group, models).items():
        assert error < TOLERANCE, f"{model_type}: {error}"


@over(1, 2)
def test_dims_that_kernels_do_not_take(group):
    """Of a GPU, where torch attends to the chosen keys: with sinks, and in strips of a few rows."""
    ours.register()
    small = mock.patch.object(indexed, "_STRIP_SCORES", 300)
    with small, mock.patch.object(indexed, "_are_for_lists", lambda q: False):
        error = worst_error(group, "hy_v4", (13, 18), index_topk=4)
        assert error < TOLERANCE, error


def test_shared_choices():
    """Layers without an indexer attend to what the layer before them has chosen."""
    ours.register()
    config = {"indexer_types": ["full", "shared"]}
    with mock.patch.dict(zoo._SPECIAL, glm_moe_dsa=config):
        assert worst_error(None, "glm_moe_dsa", (13, 19)) < TOLERANCE


def test_recomputed_layers():
    ours.register()
    model = zoo.make("deepseek_v32")
    model.train()
    plain = zoo._under_a_plan(model, None)[1]
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = zoo._under_a_plan(model, None)[1]
    assert all(torch.equal(again[name], gradient) for name, gradient in plain.items())


def test_padding_beside_a_plan_is_refused():
    ours.register()
    model = zoo.make("deepseek_v32")
    model.set_attn_implementation("magi")
    mask = masks.from_cu_seqlens([0, 13, 32])
    plan = Plan.from_mask(mask, cp_size=1, num_heads_q=4, num_heads_kv=4, head_dim=16).bind()
    ids, positions = zoo.batch()
    hidden = torch.ones_like(ids)
    hidden[0, :3] = 0
    with pytest.raises(ValueError, match="attention_mask, which hides 3 rows, is not in magi_plan"):
        model(**ours.shard(plan, ids, None, positions, model), attention_mask=hidden)
    batch = ids.view(2, 16)
    with pytest.raises(ValueError, match="the batch is 2 sequences; allowed: 1 with magi_plan"):
        model(input_ids=batch, position_ids=positions.view(2, 16), use_cache=False, magi_plan=plan)


def test_generation_without_a_plan():
    """Steps with a cache choose as "sdpa" does."""
    ours.register()
    ids = zoo.batch()[0]
    found = []
    for implementation in ("sdpa", "magi"):
        model = zoo.make("deepseek_v32")
        model.set_attn_implementation(implementation)
        found.append(model.generate(input_ids=ids, max_new_tokens=4, do_sample=False))
    assert torch.equal(*found)
