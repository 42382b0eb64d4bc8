# SPDX-License-Identifier: Apache-2.0
"""Training with Trainer, accelerate, peft and plain loops by MagiCollator."""

import itertools

import pytest

pytest.importorskip("transformers", minversion="5")

import torch

import test_transformers as models
import trainer_cases as cases
from magi_attention.integrations.trainer import MagiCallback, MagiCollator, unpad, use
from ranks import Ranks


def needs(*packages):
    """Skips a test where one of them is not installed."""
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")


def sharded(**settings):
    """Parameters, gradients and optimizer states are sharded over all ranks (FSDP2), sequences over
    those of their group.
    """
    return {"fsdp": True, "fsdp_config": {"version": 2, **settings}}


@pytest.mark.parametrize(
    "size, name, options, change",
    [
        (2, "llama", {}, ""),
        (4, "gemma2", {}, ""),
        (2, "llama", {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}, ""),
        (2, "llama", {}, "streamed"),
        (2, "llama", {}, "shared"),
        (4, "llama", {"gradient_accumulation_steps": 2}, "planned"),
        (4, "gemma2", sharded(), "planned"),
        (2, "llama", {}, "lora"),
        (2, "llama", {"gradient_checkpointing": True}, "lora"),
        (2, "llama", sharded(), "offloaded"),  # inputs of layers and attention, as training.md says
        # Under autocast rotated queries and keys are of float32 and values of bfloat16.
        (2, "llama", {"bf16": True}, ""),
        (2, "gpt_oss", {"bf16": True}, ""),
        (2, "llama", sharded(), ""),
        (4, "gemma2", sharded(reshard_after_forward=False), ""),
        (4, "llama", {"gradient_accumulation_steps": 2, **sharded(activation_checkpointing=True)},
         ""),
        # FSDP makes the plan anew, field by field, as each argument of a call that it casts.
        (2, "llama", {"bf16": True, **sharded()}, ""),
        (2, "llama", sharded(), "lora"),
        (2, "qwen3", sharded(), "by groups"),
    ],
    ids=str,
)  # fmt: skip
def test_trainer(ranks, size, name, options, change):
    needs("accelerate", *["peft"] * (change == "lora"))
    ranks.run(4, cases.trainer, size, name, options, change)


def test_trainer_compiled():
    """Two ranks alone: each of them compiles for itself, for minutes on a busy machine."""
    needs("accelerate")
    ranks, options = Ranks(2, seconds=600), {"torch_compile_backend": "eager"}
    try:
        ranks.run(2, cases.trainer, 2, "llama", {"torch_compile": True, **options})
    finally:
        ranks.stop()


@pytest.mark.parametrize("is_shared", [False, True])
def test_metrics(ranks, is_shared):
    needs("accelerate")
    ranks.run(4, cases.metrics_over_ranks, is_shared)


@pytest.mark.parametrize("is_planned", [False, True])
def test_resumed(ranks, tmp_path, is_planned):
    needs("accelerate")
    ranks.run(4, cases.resumed, str(tmp_path), {}, is_planned)


@pytest.mark.parametrize("size, name", [(1, "llama"), (2, "gemma2")])
def test_sharded_loop_of_accelerate(ranks, size, name):
    needs("accelerate")
    ranks.run(4, cases.accelerated, size, name)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt_oss"])
def test_loops(ranks, name):
    cases.loop(None, name)
    ranks.run(4, cases.loop, name)


@pytest.mark.parametrize("change", ["lora", "checkpointed"])
def test_changed_models(ranks, change):
    if change == "lora":
        needs("peft")
    cases.loop(None, "llama", change)
    ranks.run(2, cases.loop, "llama", change)


def test_samples(ranks):
    ranks.run(4, cases.own_samples)
    ranks.run(4, cases.dealt)
    ranks.run(3, cases.other_samples)
    cases.padded(None)


def test_without_a_group(ranks, monkeypatch):
    ranks.run(1, cases.without_a_group)
    model = use(models.model("llama", "sdpa"))
    monkeypatch.setenv("WORLD_SIZE", "2")  # of torchrun, before torch.distributed is up
    with pytest.raises(ValueError, match="cp_group is None in one of 2 processes"):
        MagiCollator(model)


IDS = torch.arange(1, 8)
PACKED = {"input_ids": IDS, "position_ids": [0, 1, 2, 0, 1, 2, 3]}


class TestDocuments:
    """Samples that say where documents end in them, and what is to be learned."""

    @pytest.fixture
    def collator(self):
        return MagiCollator(use(models.model("llama", "sdpa")))

    def equal(self, found, wanted):
        assert found.keys() == wanted.keys() and found["magi_plan"] is wanted["magi_plan"]
        for name in ("input_ids", "labels", "position_ids", "shift_labels"):
            assert torch.equal(found[name], wanted[name]), name

    @pytest.mark.parametrize(
        "name, value",
        [
            ("position_ids", PACKED["position_ids"]),
            ("attention_mask", [1, 1, 1, 2, 2, 2, 2]),
            ("attention_mask", torch.tensor([5.0, 5, 5, 2, 2, 2, 2])),
            ("seq_lengths", [3, 4]),
            ("seq_lens", torch.tensor([3, 4, -1])),
            ("cu_seqlens", torch.tensor([[0, 3, 7, -1, -1]])),
            ("cu_seq_lens_q", [0, 3, 7]),
            ("seq_idx", torch.tensor([[0, 0, 0, 1, 1, 1, 1]])),
        ],
        ids=itertools.count(),
    )
    def test_forms(self, collator, name, value):
        wanted = collator([{"input_ids": IDS[:3]}, {"input_ids": IDS[3:]}])
        sample = {"input_ids": IDS, name: value}
        self.equal(collator([sample]), wanted)
        self.equal(collator([{**PACKED, **sample, "max_length_q": 4, "text": "a"}]), wanted)
        batch = {key: torch.as_tensor(of).reshape(1, -1) for key, of in sample.items()}
        self.equal(collator(unpad(batch)), wanted)

    def test_padding(self, collator):
        wanted = collator([{"input_ids": IDS[:2]}, {"input_ids": IDS[3:6]}])
        for given in (
            {"attention_mask": [1, 1, 0, 2, 2, 2, 0]},
            {"attention_mask": [1, 1, 0, 2, 2, 2, 0], "position_ids": [0, 1, 7, 0, 1, 2, 9]},
            {"cu_seqlens": [0, 2, 5], "cu_seqlens_padded": [0, 3, 7]},
            {"seq_lens": [2, 3], "seq_lens_padded": [3, 4]},
        ):
            self.equal(collator([{"input_ids": IDS, **given}]), wanted)

    @pytest.mark.parametrize("name", ["completion_mask", "assistant_masks"])
    def test_what_is_learned(self, collator, name):
        learned = [0, 0, 1, 1, 1, 0, 1]
        labels = IDS.masked_fill(torch.tensor(learned) == 0, -100)
        wanted = collator([{"input_ids": IDS, "labels": labels}])
        self.equal(collator([{"input_ids": IDS, name: learned}]), wanted)
        labels[3] = -100  # both count
        given = {"input_ids": IDS, name: learned, "labels": labels}
        self.equal(collator([given]), collator([{"input_ids": IDS, "labels": labels}]))

    def test_positions_that_run_on(self, collator):
        found = collator([{"input_ids": IDS, "seq_lengths": [3, 4], "position_ids": range(9, 16)}])
        assert found["position_ids"].tolist() == [list(range(9, 16))]

    @pytest.mark.parametrize(
        "given, pattern",
        [
            ({"attention_mask": [1, 1, 1, 2, 2, 1, 1]}, "attention_mask has a document in two"),
            ({"attention_mask": [0.0, 0, 0, 0, 0, 0, -9]}, "attention_mask holds -9"),
            ({"attention_mask": [1, 1, 1, 0.5, 1, 1, 1]}, "attention_mask holds 0.5"),
            ({"position_ids": [0, 1, 2, 5, 6, 7, 8]}, "leave out numbers before row 3"),
            ({**PACKED, "seq_lengths": [4, 3]}, "position_ids and seq_lengths differ .* row 3"),
            ({"seq_lengths": [4, 3], "seq_idx": [0, 0, 0, 1, 1, 1, 1]}, "differ .* row 3"),
            ({"seq_lengths": [4, 4]}, "seq_lengths has documents of 8 rows; allowed: 7"),
            ({"cu_seqlens": [0, 4]}, "cu_seqlens has documents of 4 rows; allowed: 7"),
            ({"completion_mask": [0, 0, 0, 2, 1, 1, 1]}, "completion_mask holds 2; allowed: 0"),
            ({"completion_mask": [0, 1]}, r"completion_mask has shape \[2\]"),
            ({"position_ids": torch.zeros(3, 1, 7)}, r"position_ids has shape \[3, 1, 7\]"),
            ({"pixel_values": torch.zeros(1)}, "the sample has pixel_values, which the collator"),
            ({"images": [{"bytes": b"1"}]}, "the sample has images"),
            ({"inputs_embeds": None, "loss_mask": [1] * 7}, "the sample has loss_mask"),
            ({"sample_weight": 0.5}, "the sample has sample_weight"),
        ],
        ids=itertools.count(),
    )
    def test_refusals(self, collator, given, pattern):
        with pytest.raises(ValueError, match=pattern):
            collator([{"input_ids": IDS, **given}])


class TestWhereItRuns:
    """Errors, and that what they advise works."""

    @pytest.fixture
    def collator(self):
        return MagiCollator(use(models.model("llama", "sdpa")), is_same_on_ranks=True)

    def test_worker(self, collator):
        def loss(num_workers):
            loader = torch.utils.data.DataLoader(
                [{"input_ids": IDS}], collate_fn=collator, num_workers=num_workers,
                timeout=60 * num_workers,
            )  # fmt: skip
            return collator.model(**next(iter(loader))).loss

        with pytest.raises(ValueError, match="allowed: dataloader_num_workers=0, as plans stay"):
            loss(1)
        assert loss(0).isfinite()

    def test_processes_that_trainer_knows_not(self, collator, tmp_path, monkeypatch):
        """As where torchrun started ranks without GPUs, and use_cpu is not set."""
        pytest.importorskip("accelerate", reason="accelerate is not installed")
        monkeypatch.setattr("magi_attention.integrations.trainer.num_processes", lambda: 2)
        with pytest.raises(ValueError, match="one of 1 processes, of 2 that were started; allowed"):
            cases.trainer_of(tmp_path, collator.model, [], collator)

    def test_streams(self, collator, tmp_path):
        accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
        dataset = cases.Streamed([{"input_ids": IDS}])
        for name in ("dispatch_batches", "split_batches"):
            options = {"accelerator_config": {name: True}, "max_steps": 1}
            with pytest.raises(ValueError, match=f"accelerator_config has {name} True; allowed"):
                cases.trainer_of(tmp_path, collator.model, dataset, collator, **options)
        run = cases.trainer_of(tmp_path, collator.model, dataset, collator, max_steps=1)
        assert run.evaluate()["eval_loss"] > 0

        def loss(**options):
            settings = accelerate.DataLoaderConfiguration(**options)
            loader = torch.utils.data.DataLoader(dataset, collate_fn=collator)
            prepare = accelerate.Accelerator(cpu=True, dataloader_config=settings).prepare
            return collator.model(**next(iter(prepare(loader)))).loss

        with pytest.raises(ValueError, match=r"DataLoaderConfiguration\(dispatch_batches=False\)"):
            loss()
        assert loss(dispatch_batches=False).isfinite()

    @pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
    def test_virtual_tokens(self, collator, kind):
        peft = pytest.importorskip("peft", reason="peft is not installed")
        settings = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
        batch, pattern = collator([{"input_ids": IDS}]), f"{kind} puts 3 virtual tokens before"
        wrapped = peft.get_peft_model(collator.model, settings)
        for call in (lambda: MagiCollator(wrapped), lambda: use(wrapped), lambda: wrapped(**batch)):
            with pytest.raises(ValueError, match=pattern):
                call()

    def test_labels(self, collator):
        """Those of the usual metrics, which shift predictions by a row, and of Trainer's count."""
        labels = IDS.clone()
        labels[:2] = -100
        found = collator([{"input_ids": IDS, "labels": labels}, {"input_ids": IDS}])
        wanted = torch.cat((labels, IDS))
        wanted[7] = -100
        assert torch.equal(found["labels"][0], wanted)
        assert torch.equal(found["shift_labels"][0, :-1], wanted[1:])


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
        with pytest.raises(ValueError, match=r"attends through 'sdpa'.*; try: use\(model\)"):
            MagiCollator(models.model("llama", "sdpa"))
        with pytest.raises(TypeError, match="collator is a LlamaForCausalLM; allowed: a MagiColl"):
            MagiCallback(models.model("llama", "sdpa"))
        needs("accelerate")
        from accelerate import ParallelismConfig

        class Arguments:
            world_size, average_tokens_across_devices, label_smoothing_factor = 2, False, 0.1
            parallelism_config, remove_unused_columns = None, True
            dataloader_num_workers = 2

        def is_refused(match):
            with pytest.raises(ValueError, match=match):
                MagiCallback().on_train_begin(Arguments, None, None, None)

        is_refused("remove_unused_columns is True; allowed: False")
        MagiCallback().on_init_end(Arguments, None, None)
        assert Arguments.remove_unused_columns is False
        is_refused("average_tokens_across_devices is False")
        Arguments.average_tokens_across_devices = True
        is_refused("dataloader_num_workers is 2; allowed: 0")
        Arguments.dataloader_num_workers = 0
        is_refused(r"label_smoothing_factor is 0\.1; allowed: 0")
        Arguments.label_smoothing_factor = 0.0
        for name in ("cp_size", "sp_size"):
            Arguments.parallelism_config = ParallelismConfig(**{name: 2})
            is_refused(f"parallelism_config has {name} 2; allowed: 1")
        Arguments.parallelism_config = None
        model = models.model("llama", "sdpa")
        MagiCallback().on_train_begin(Arguments, None, None, model)
        assert model.config._attn_implementation == "magi"
