# SPDX-License-Identifier: Apache-2.0
"""Training with Trainer, accelerate, peft and plain loops by MagiCollator."""

import pytest

pytest.importorskip("transformers", minversion="5")

import torch

import trainer_cases as cases
import transformers_cases as models
from magi_attention.integrations.trainer import MagiCallback, MagiCollator, unpad, use
from ranks import Ranks


@pytest.mark.parametrize(
    "size, name, options",
    [
        (2, "llama", {}),
        (4, "gemma2", {}),
        (2, "llama", {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}),
    ],
    ids=str,
)
def test_trainer(ranks, size, name, options):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    ranks.run(4, cases.trainer, size, name, options)


COMPILED = {"torch_compile": True, "torch_compile_backend": "aot_eager"}


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=str)
def test_trainer_with_adapters(ranks, options):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    pytest.importorskip("peft", reason="peft is not installed")
    ranks.run(4, cases.trainer, 2, "llama", options, "lora")


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_trainer_in_bfloat16(ranks, name):
    """Under autocast, where rotated queries and keys are of float32 and values of bfloat16."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    ranks.run(4, cases.trainer, 2, name, {"bf16": True})


def test_trainer_compiled():
    """Two ranks alone: each of them compiles for itself, for minutes on a busy machine."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    ranks = Ranks(2, seconds=600)
    try:
        ranks.run(2, cases.trainer, 2, "llama", COMPILED)
    finally:
        ranks.stop()


class TestSharded:
    """Parameters, gradients and optimizer states are sharded over all ranks (FSDP2), sequences over
    those of their group.
    """

    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("accelerate", reason="accelerate is not installed")

    @pytest.mark.parametrize(
        "size, name, options, settings",
        [
            (1, "llama", {}, {}),
            (2, "llama", {}, {}),
            (4, "gemma2", {}, {"reshard_after_forward": False}),
            (4, "llama", {"gradient_accumulation_steps": 2}, {"activation_checkpointing": True}),
        ],
        ids=str,
    )
    def test_trainer(self, ranks, size, name, options, settings):
        settings = {"version": 2, **settings}
        ranks.run(4, cases.trainer, size, name, {**options, "fsdp": True, "fsdp_config": settings})

    def test_trainer_in_bfloat16(self, ranks):
        """FSDP makes the plan anew, field by field, as each argument of a call that it casts."""
        options = {"bf16": True, "fsdp": True, "fsdp_config": {"version": 2}}
        ranks.run(4, cases.trainer, 2, "llama", options)

    def test_trainer_with_adapters(self, ranks):
        pytest.importorskip("peft", reason="peft is not installed")
        options = {"fsdp": True, "fsdp_config": {"version": 2}}
        ranks.run(4, cases.trainer, 2, "llama", options, "lora")

    @pytest.mark.parametrize("size, name", [(1, "llama"), (2, "gemma2"), (4, "llama")])
    def test_loop_of_accelerate(self, ranks, size, name):
        ranks.run(4, cases.accelerated, size, name)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt_oss"])
def test_loops(ranks, name):
    cases.loop(None, name)
    ranks.run(4, cases.loop, name)


@pytest.mark.parametrize("change", ["lora", "checkpointed", "compiled"])
def test_changed_models(ranks, change):
    if change == "lora":
        pytest.importorskip("peft", reason="peft is not installed")
    cases.loop(None, "llama", change)
    ranks.run(2, cases.loop, "llama", change)


def test_samples(ranks):
    ranks.run(4, cases.own_samples)
    cases.padded(None)


class TestRefusals:
    def test_samples(self):
        collator = MagiCollator(use(models.model("llama", "sdpa")), max_rows=5)
        ids = torch.arange(6)
        for sample, pattern in (
            ({"input_ids": ids}, "the samples have 6 rows; allowed: up to 5, max_rows"),
            ({"text": "hi", "labels": ids}, "sample has text, labels; allowed: input_ids"),
            ({}, "sample has no keys; allowed: input_ids among them"),
            ({"input_ids": ids, "labels": ids[1:]}, r"labels has shape \[5\], input_ids \[6\]"),
            ({"input_ids": ids[None]}, r"^input_ids has shape \[1, 6\]; allowed: \[rows\]$"),
            ({"input_ids": ids, "attention_mask": ids[1:]}, r"attention_mask has shape \[5\]"),
            ({"input_ids": ids, "attention_mask": [1, 0, 1, 1, 0, 0]}, "hides rows between others"),
        ):
            with pytest.raises(ValueError, match=pattern):
                collator([sample])
        with pytest.raises(ValueError, match=r"attention_mask has shape \[6\]; allowed: \[batch"):
            unpad({"input_ids": ids[None], "attention_mask": ids})
        assert len(collator([{"input_ids": [1, 2]}, {"input_ids": []}])["input_ids"][0]) == 2

    def test_models_and_arguments(self):
        with pytest.raises(ValueError, match="LlamaForCausalLM attends through 'sdpa'"):
            MagiCollator(models.model("llama", "sdpa"))
        pytest.importorskip("accelerate", reason="accelerate is not installed")

        class Arguments:
            world_size, average_tokens_across_devices, label_smoothing_factor = 2, False, 0.1
            parallelism_config = None

        with pytest.raises(ValueError, match="average_tokens_across_devices is False"):
            MagiCallback().on_train_begin(Arguments, None, None, None)
        Arguments.average_tokens_across_devices = True
        with pytest.raises(ValueError, match=r"label_smoothing_factor is 0\.1; allowed: 0"):
            MagiCallback().on_train_begin(Arguments, None, None, None)
        Arguments.label_smoothing_factor = 0.0
        from accelerate import ParallelismConfig

        for name in ("cp_size", "sp_size"):
            Arguments.parallelism_config = ParallelismConfig(**{name: 2})
            with pytest.raises(ValueError, match=f"parallelism_config has {name} 2; allowed: 1"):
                MagiCallback().on_train_begin(Arguments, None, None, None)
        Arguments.parallelism_config = None
        model = models.model("llama", "sdpa")
        MagiCallback().on_train_begin(Arguments, None, None, model)
        assert model.config._attn_implementation == "magi"
