# SPDX-License-Identifier: Apache-2.0
"""Attention of transformers and Megatron by groups of kv heads, against all heads at once."""

from functools import partial, update_wrapper

import pytest

pytest.importorskip("transformers", minversion="5")

import torch

import model_zoo
import test_megatron as megatron
from magi_attention.integrations.trainer import MagiCollator, use
from magi_attention.training import save_attention as keep
from ranks import over
from test_training import Counts, check_equal


def step_of(model, group) -> list[torch.Tensor]:
    """Loss and gradients of a rank's part of a step."""
    samples = [{"input_ids": torch.arange(1, rows + 1)} for rows in (13, 19)]
    batch = MagiCollator(model, group, is_same_on_ranks=True)(samples)
    loss = model.train()(**batch, num_items_in_batch=30).loss
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


@over(1, 2)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt_oss"])
def test_models_of_transformers(group, name):
    wanted = step_of(use(model_zoo.make(name)), group)
    for groups in (1, 2):
        model = use(model_zoo.make(name), head_groups=groups)
        if groups == 2:
            model.gradient_checkpointing_enable(dict(context_fn=keep, use_reentrant=False))
        with Counts() as counted:
            check_equal(step_of(use(model), group), wanted)
        assert counted.found[0] == 2 * groups


def test_without_a_plan():
    model = use(model_zoo.make("llama"), head_groups=2)
    assert model.generate(torch.ones(1, 3).long(), max_new_tokens=2).shape == (1, 5)


@pytest.mark.parametrize(
    "model_type, groups, pattern",
    [
        ("olmo2", 2, "Olmo2Attention has q_norm between its projections; allowed"),
        ("qwen3_next", 2, "Qwen3NextAttention has outputs or values of other widths than its q"),
        ("stablelm", 2, "StableLmAttention has a forward that counts its num_heads; allowed"),
        ("llama", 3, "head_groups is 3; allowed: divisors of 2 in LlamaAttention"),
    ],
)
def test_models_that_are_refused(model_type, groups, pattern):
    with pytest.raises(ValueError, match=pattern):
        use(model_zoo.make(model_type), head_groups=groups)


def test_layers_that_others_have_changed():
    """Hooks would see groups, and a sum of what they add; another forward would not be called."""
    layer = (model := use(model_zoo.make("llama"), head_groups=2)).model.layers[1].self_attn
    hook = layer.o_proj.register_forward_hook(lambda module, given, out: out + 1)
    with pytest.raises(ValueError, match="LlamaAttention has hooks of o_proj; allowed"):
        step_of(model, None)
    hook.remove()
    step_of(use(model, head_groups=1), None)
    layer.forward = update_wrapper(partial(layer.forward), layer.forward)
    with pytest.raises(ValueError, match="LlamaAttention has another forward than its class"):
        use(model)


@megatron.ON_ALL
@pytest.mark.parametrize(
    "tensor, changes",
    [
        (1, {}),
        (2, dict(qk_layernorm=True, softmax_type="learnable")),
        (1, dict(add_bias_linear=False, attention_output_gate=True, mtp_num_layers=1)),
    ],
)
def test_megatron(group, tensor, changes):
    sizes = dict(num_attention_heads=8, num_query_groups=4, tensor_model_parallel_size=tensor)
    with megatron.on_cpu():
        group, batch = megatron.start(2, tensor_model_parallel_size=tensor), megatron.packed_batch()

        def step(groups):
            model = megatron.gpt(megatron.config(2, **sizes, **changes), True)
            for parameter in (one for one in model.parameters() if one.dim() < 2):
                torch.nn.init.normal_(parameter, 1.0, 0.1)  # biases and sinks among them
            megatron.ours.adapt_model(model, groups)
            losses = megatron.losses_of(model, megatron.ours.prepare_batch(batch, model, group))
            losses.sum().backward()
            return [losses.detach(), *megatron.gradients(model).values()]

        wanted = step(None)
        with Counts() as counted:
            check_equal(step(2), wanted)
        assert counted.found[0] == 2 * (2 + changes.get("mtp_num_layers", 0))
        model = megatron.gpt(megatron.config(2, **sizes, log_max_attention_logit=True), True)
        with pytest.raises(ValueError, match="SelfAttention has another core_attention than MagiC"):
            megatron.ours.adapt_model(model, 2)
