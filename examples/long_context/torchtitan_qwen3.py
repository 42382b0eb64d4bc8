# SPDX-License-Identifier: Apache-2.0
"""Configurations of torchtitan (0.3), whose context parallel ranks attend under plans:

    export PYTHONPATH=examples/long_context
    torchrun --nproc-per-node 8 -m torchtitan.train --module torchtitan_qwen3 --config qwen3_8b \\
        --hf_assets_path Qwen3-8B                                    # 1,048,576 tokens

Every option of torchtitan may follow, such as --training.seq_len and --training.steps.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.qwen3 import model_registry
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from magi_attention import Plan, masks
from magi_attention.training import Offload, over_rows

CHUNK = 8192  # rows of which the inside of the MLP is held at a time


class PlannedAttention(ScaledDotProductAttention):
    """Attention under the plan that the model is given as attention_masks. torchtitan gives q, k
    and v [1, rows, heads, dim] over ranks as DTensors, Shard(1) over its mesh "cp".
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledDotProductAttention.Config):
        pass

    def forward(self, q, k, v, *, attention_masks, scale=None, **_) -> torch.Tensor:
        qkv = (tensor.squeeze(0) for tensor in (q, k, v))
        return attention_masks.calc_attn(*qkv, softmax_scale=scale)[0].unsqueeze(0)


class KeepAttention(ActivationCheckpointing):
    """The backward computes layers again, but not attention. What is kept goes to the host."""

    @dataclass(kw_only=True, slots=True)
    class Config(ActivationCheckpointing.Config):
        pass

    def apply(self, model: torch.nn.Module) -> None:
        self.host = Offload()
        super().apply(self.host.over(model))

    def _wrap_block(self, module, *, base_fqn=None) -> torch.nn.Module:
        module.feed_forward.forward = in_chunks(module.feed_forward.forward)
        return checkpoint_wrapper(module, context_fn=self.host.save_attention)


def in_chunks(mlp):
    return lambda x: over_rows(mlp, x, rows=CHUNK, dim=1)


class PlanTrainer(Trainer):
    """A Trainer that gives each context parallel rank its rows of a batch under a plan of its
    packed documents, which begin where positions are 0.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        activation_checkpoint: KeepAttention.Config = field(default_factory=KeepAttention.Config)

    def post_dataloading_process(self, input_dict, labels):
        ids, positions = input_dict["input"].flatten(), input_dict["positions"].flatten()
        begins = (positions == 0).nonzero().flatten()
        bounds = torch.cat((begins, begins.new_tensor([len(ids)])))
        dims, of = self.parallel_dims, self.model_config.first_attention
        plan = Plan.from_mask(
            masks.from_cu_seqlens(bounds), cp_size=dims.cp, num_heads_q=of.n_heads,
            num_heads_kv=of.n_kv_heads, head_dim=of.head_dim,
        )  # fmt: skip
        bound = plan.bind(dims.get_mesh("cp").get_group() if dims.cp_enabled else None)
        ids, positions = bound.dispatch(ids), bound.dispatch(positions)
        labels = bound.dispatch(labels.flatten(), -100)
        self.ntokens_seen += len(labels)
        return ids[None], labels[None], {"positions": positions[None], "attention_masks": bound}


def config_of(spec: ModelSpec, tokens: int, **others) -> PlanTrainer.Config:
    """Of a dense decoder of torchtitan, all of whose ranks share a sequence."""
    for layer in spec.model.layers:
        layer.attention.inner_attention = PlannedAttention.Config()
        layer.attention.rope.max_seq_len = max(tokens, layer.attention.rope.max_seq_len)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    given = dict(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))
        ),
        optimizer=default_adamw(lr=1e-5),
        training=TrainingConfig(
            local_batch_size=1, seq_len=tokens, steps=10, disable_cuda_graphs=True
        ),
        parallelism=ParallelismConfig(
            context_parallel_degree=ranks, spmd_backend="partial_dtensor"
        ),
        metrics=MetricsProcessor.Config(log_freq=1),
    )  # fmt: skip
    return PlanTrainer.Config(**given | others)


def qwen3_8b() -> PlanTrainer.Config:
    data = HuggingFaceTextDataLoader.Config(dataset="c4")
    return config_of(model_registry("8B"), 1 << 20, dataloader=data)
