#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a model of Qwen3-8B's shape by TRL's SFTTrainer, with or without packing: cp_size
ranks share each batch, and other ranks are data-parallel replicas.

    torchrun --nproc-per-node 8 trl_sft.py                          # 1,048,576 tokens
    torchrun --nproc-per-node 8 trl_sft.py --weights Qwen3-8B --data documents.jsonl
    torchrun --nproc-per-node 2 trl_sft.py --small --tokens 512     # to try it, CPUs will do
"""

from __future__ import annotations

import argparse
import os

import torch
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    TrainerCallback,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

from magi_attention.integrations.batches import MagiBatchCollator
from magi_attention.integrations.trainer import MagiCallback, MagiCollator, use
from pytorch_fsdp import QWEN3_8B, SMALL, keep_little
from recipe import Progress, parser_of, sequences


class Told(TrainerCallback):
    """Prints a line for each step, as the other recipes do."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._tokens = given, 0

    def on_train_begin(self, args, state, control, **_) -> None:
        self._progress = Progress(self._given)
        self._progress.losses += [log["loss"] for log in state.log_history if "loss" in log]

    def on_log(self, args, state, control, logs, **_) -> None:
        if "loss" in logs:  # TRL counts tokens of all ranks
            tokens, self._tokens = logs["num_tokens"] - self._tokens, logs["num_tokens"]
            first = state.is_world_process_zero
            self._progress.tell(float(logs["loss"]), tokens, args.world_size, first)


def make_model(given: argparse.Namespace):
    """A model and its tokenizer; random weights come with one that knows the end alone."""
    layers = {"num_hidden_layers": given.layers} if given.layers else {}
    if given.weights:
        model = AutoModelForCausalLM.from_pretrained(given.weights, **layers)
        return model, AutoTokenizer.from_pretrained(given.weights)
    config = Qwen3Config(**(SMALL if given.small else QWEN3_8B) | layers)
    end = Tokenizer(models.WordLevel({"<end>": 0}, "<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=end, eos_token="<end>")
    return AutoModelForCausalLM.from_config(config), tokenizer


def documents(given: argparse.Namespace) -> Dataset:
    """Those of the other recipes, as ids, or those of a file."""
    if given.data:
        return load_dataset("json", data_files=given.data)["train"]
    return Dataset.from_list([
        {"input_ids": ids.tolist()}
        for packed in sequences(given, torch.device("cpu"))
        for ids in packed.ids.split(packed.bounds.diff().tolist())
    ])  # fmt: skip


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    parser.add_argument("--cp-size", type=int, default=ranks, help="share a batch; default: all")
    parser.add_argument("--plan-batches", action="store_true", help="over all ranks, no --cp-size")
    parser.add_argument("--weights", help="of the hub or a folder; default: random ones")
    parser.add_argument("--data", help="a file of JSON lines with text; default: a few documents")
    parser.add_argument("--packing", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--folder", default="demo_out/trl_sft", help="of checkpoints")
    parser.add_argument("--resume", action="store_true", help="goes on at the last checkpoint")
    given = parser.parse_args()
    if given.data and not given.weights:
        parser.error("--data has text; allowed: with --weights, which bring a tokenizer")
    return given


def main() -> None:
    given = parse()
    set_seed(0)
    model, tokenizer = make_model(given)
    keep_little(model)
    parts = documents(given).train_test_split(0.2, seed=0)
    is_gpu = torch.cuda.is_available()
    is_sharded = is_gpu and int(os.environ.get("WORLD_SIZE", "1")) > 1
    arguments = SFTConfig(
        given.folder, max_length=given.tokens, packing=given.packing, max_steps=given.steps,
        per_device_train_batch_size=1 if given.packing else 2,  # samples of a group
        per_device_eval_batch_size=1, eval_strategy="steps", eval_steps=given.steps,
        save_steps=max(1, given.steps // 2), logging_steps=1, learning_rate=given.rate,
        report_to=[], bf16=is_gpu, use_cpu=not is_gpu, fsdp=is_sharded,
        fsdp_config={"version": 2} if is_sharded else None,
        gradient_checkpointing=False,  # TRL's own would take the place of keep_little's
    )  # fmt: skip
    if given.plan_batches:
        rows = given.tokens * arguments.per_device_train_batch_size
        collator = MagiBatchCollator(use(model), rows_per_rank=rows)
    else:
        collator = MagiCollator(use(model), cp_size=given.cp_size, is_same_on_ranks=True)
    trainer = SFTTrainer(
        model, arguments, train_dataset=parts["train"], eval_dataset=parts["test"],
        processing_class=tokenizer, callbacks=[MagiCallback(collator), Told(given)],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=given.resume)


if __name__ == "__main__":
    main()
