#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Supervised fine-tuning by TRL's SFTTrainer, with or without packing: cp_size ranks share each
batch, and other ranks are data-parallel replicas. By default a tiny model learns a few documents,
on CPUs too.

    torchrun --nproc-per-node 8 examples/long_context/trl_sft.py --cp-size 4 --packing \\
        --model Qwen/Qwen3-8B --data documents.jsonl --rows 65536 --fsdp --bf16
"""

from __future__ import annotations

import argparse

import torch
from datasets import Dataset, load_dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

from magi_attention.integrations.batches import MagiBatchCollator
from magi_attention.integrations.trainer import MagiCallback, MagiCollator, use

LETTERS = " abcdefghijklmnopqrstuvwxyz"
SENTENCE = "a rank holds rows of one sequence and asks other ranks for the keys that it sees "


def tiny():
    """A model, its tokenizer of letters, and documents of different lengths."""
    vocabulary = {letter: number for number, letter in enumerate(["<end>", *LETTERS])}
    letters = Tokenizer(models.WordLevel(vocabulary, "<end>"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<end>")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    texts = [SENTENCE[i % 5 :] * (1 + i % 3) for i in range(23)]
    return LlamaForCausalLM(config), tokenizer, Dataset.from_list([{"text": t} for t in texts])


def main() -> None:
    parser = argparse.ArgumentParser(description="TRL's SFTTrainer under context parallelism")
    parser.add_argument("--cp-size", type=int, default=1, help="ranks that share a batch")
    parser.add_argument("--plan-batches", action="store_true", help="over all ranks, no --cp-size")
    parser.add_argument("--model", help="of the hub or a folder; default: a tiny one")
    parser.add_argument("--data", help="a file of JSON lines with text; default: a few documents")
    parser.add_argument("--rows", type=int, default=512, help="tokens of a sample at most")
    parser.add_argument("--packing", action="store_true", help="several documents in a sample")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", default="demo_out/trl_sft")
    parser.add_argument("--resume", action="store_true", help="goes on at the last checkpoint")
    parser.add_argument("--fsdp", action="store_true", help="shards weights over all ranks")
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    set_seed(0)
    model, tokenizer, documents = tiny()
    if given.model:
        model = AutoModelForCausalLM.from_pretrained(given.model)
        tokenizer = AutoTokenizer.from_pretrained(given.model)
    if given.data:
        documents = load_dataset("json", data_files=given.data)["train"]
    parts = documents.train_test_split(0.2, seed=0)
    arguments = SFTConfig(
        given.out, max_length=given.rows, packing=given.packing, max_steps=given.steps,
        per_device_train_batch_size=1 if given.packing else 2,  # samples of a group
        per_device_eval_batch_size=1, eval_strategy="steps", eval_steps=given.steps,
        save_steps=max(1, given.steps // 2), logging_steps=1, learning_rate=1e-3, report_to=[],
        gradient_checkpointing=bool(given.model), bf16=given.bf16, fsdp=given.fsdp,
        fsdp_config={"version": 2} if given.fsdp else None, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    if given.plan_batches:
        rows = given.rows * arguments.per_device_train_batch_size
        collator = MagiBatchCollator(use(model), rows_per_rank=rows)
    else:
        collator = MagiCollator(use(model), cp_size=given.cp_size, is_same_on_ranks=True)
    trainer = SFTTrainer(
        model, arguments, train_dataset=parts["train"], eval_dataset=parts["test"],
        processing_class=tokenizer, callbacks=[MagiCallback(collator)],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=given.resume)


if __name__ == "__main__":
    main()
