# SPDX-License-Identifier: Apache-2.0
"""Every causal language model of transformers in a tiny configuration: right under plans, alone and
over two ranks, or refused in words.
"""

import pytest

pytest.importorskip("transformers", minversion="5")

import model_zoo
from ranks import over

PART = 12
PARTS = [model_zoo.MODEL_TYPES[i : i + PART] for i in range(0, len(model_zoo.MODEL_TYPES), PART)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0]}-{part[-1]}")
def test_over_two_ranks(ranks, part):
    for outcomes in ranks.run(2, model_zoo.walk, part):
        for model_type, (kind, text) in outcomes.items():
            assert kind in ("right", "refused", "not built"), f"{model_type}: {kind}, {text}"


@over(2)
def test_latents(group):
    """Models of latent attention, whose layers differ in RoPE, in q and in what scales latents."""
    models = "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu", "kimi_linear"
    for model_type in models:
        with model_zoo.by("latent"):
            kind, text = model_zoo.walk(group, [model_type])[model_type]
        assert kind == "right", f"{model_type}: {kind}, {text}"


@over(1, 2)
def test_narrow_values(group):
    """Plans have the head dim of values for MLA's sizes, else, as backends ask, that of keys."""
    from transformers import DeepseekV3Config

    mla, grouped = DeepseekV3Config(), DeepseekV3Config(num_key_value_heads=8)
    small = model_zoo.make("axk2")
    for config, dims in ((mla, (192, 128)), (grouped, (192, 192)), (small, (16, 16))):
        for place in (group, None):
            plan = model_zoo.plans_of_documents(config, model_zoo.DOCUMENTS, place)
            plan = next(iter(plan.values())) if isinstance(plan, dict) else plan
            report = model_zoo.ours.bound_of(plan).plan.report
            assert (report.head_dim, report.head_dim_v) == dims
    assert model_zoo.walk(group, ["deepseek_v3"])["deepseek_v3"][0] == "right"


def test_alone():
    models = (
        "llama", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss",
        "deepseek_v3", "mixtral", "phi3", "olmo2", "glm4", "roberta", "gpt2", "opt",
    )  # fmt: skip
    found = model_zoo.walk(None, models)
    assert all(kind == "right" for kind, _ in found.values()), found


@pytest.mark.parametrize(
    "model_type, pattern",
    [
        ("deepseek_v4", "DeepseekV4ForCausalLM has layers of type 'heavily_compressed_attention'"),
        ("mamba", "MambaForCausalLM takes no position_ids"),
        ("bloom", "BloomForCausalLM attends through 'eager'"),
        ("bart", "BartForCausalLM takes no position_ids"),
        ("git", "GitForCausalLM computes with its attention mask by itself"),
        ("doge", "DogeForCausalLM computes aux_loss over the rows of a rank"),
        ("stablelm", "StableLmForCausalLM was given magi_plan, but its StableLmAttention was not"),
    ],
)
def test_words(model_type, pattern):
    kind, text = model_zoo.walk(None, [model_type])[model_type]
    assert kind == "refused" and pattern in text


@pytest.mark.parametrize("model_type", ["deepseek_v32", "doge", "llama", "mistral"])
def test_masks_that_models_use(model_type):
    model_zoo.used_masks(model_type)


def test_positions_behind_padding():
    """A table of positions with a row for padding: ids begin behind it, or are refused."""
    import torch

    from magi_attention.integrations import transformers as ours

    ours.register()
    model = model_zoo.make("roberta")
    model.set_attn_implementation("magi")
    plan = model_zoo.plans_of_documents(model, model_zoo.DOCUMENTS, None)
    ids, positions = model_zoo.batch()
    assert ours.shard(plan, ids, model=model)["position_ids"].min() == 1
    pattern = "position_ids begin at 0; allowed: those of RobertaForCausalLM, which begin at 1"
    with pytest.raises(ValueError, match=pattern):
        ours.shard(plan, ids, None, positions, model)
    with pytest.raises(ValueError, match=pattern):
        model(**ours.shard(plan, ids, None, positions))
    with pytest.raises(TypeError, match="model is a Linear; allowed: models of transformers"):
        ours.check_model(torch.nn.Linear(2, 2))
