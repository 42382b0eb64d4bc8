#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT of Qwen3-8B's shape on one sequence at a time, which all ranks share: megatron-core,
its layers recomputed but for attention, weights sharded by FSDP2.

    torchrun --nproc-per-node 8 megatron_train.py                  # 1,048,576 tokens
    torchrun --nproc-per-node 2 megatron_train.py --small --tokens 4096
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from magi_attention.integrations.megatron import (
    adapt_model,
    prepare_batch,
    save_attention,
    with_magi_attention,
)
from magi_attention.training import Offload, loss_over_rows, over_rows
from recipe import IGNORED, Packed, Progress, end_rank, parser_of, sequences, start

QWEN3_8B = dict(
    num_layers=36, hidden_size=4096, ffn_hidden_size=12288, num_attention_heads=32,
    num_query_groups=8, kv_channels=128,
)  # fmt: skip
SMALL = dict(
    num_layers=2, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4, num_query_groups=2,
    kv_channels=16,
)  # fmt: skip
CHUNK = 8192  # rows whose logits, and whose inside of the MLP, are held at a time


def config_of(given: argparse.Namespace, ranks: int, is_cpu: bool) -> TransformerConfig:
    shape = SMALL if given.small else QWEN3_8B
    if given.layers:
        shape = shape | {"num_layers": given.layers}
    return TransformerConfig(
        **shape, context_parallel_size=ranks, normalization="RMSNorm", layernorm_epsilon=1e-6,
        qk_layernorm=True, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, attention_dropout=0.0, hidden_dropout=0.0,
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1,
        use_cpu_initialization=is_cpu, masked_softmax_fusion=False, bias_activation_fusion=False,
        bias_dropout_fusion=False,
    )  # fmt: skip


class Trained(torch.nn.Module):
    """The sum of the losses of a rank's rows."""

    def __init__(self, config: TransformerConfig, vocabulary: int, tokens: int) -> None:
        super().__init__()
        spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
        self.model = adapt_model(
            GPTModel(
                config, with_magi_attention(spec), vocabulary, tokens, rotary_base=1_000_000,
                position_embedding_type="rope", share_embeddings_and_output_weights=False,
            )
        )  # fmt: skip
        self.model.post_process = False  # it returns what goes into the output layer
        for layer in self.model.decoder.layers:
            layer.mlp.forward = in_chunks(layer.mlp.forward)
        # The backward computes layers again, but not attention. What is kept goes to the host.
        self.host = Offload()
        save_attention(self.host.save_attention)

    def forward(self, batch: dict) -> torch.Tensor:
        with self.host:
            hidden = self.model(
                batch["tokens"], batch["position_ids"], None,
                packed_seq_params=batch["packed_seq_params"],
            )  # fmt: skip
        labels = batch["labels"].masked_fill(batch["loss_mask"] == 0, IGNORED)
        return loss_over_rows(self.logits, hidden, labels.view(-1, 1), rows=CHUNK)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.output_layer(hidden)[0].transpose(1, 2)


def in_chunks(mlp):
    return lambda x, **_: (over_rows(lambda rows: mlp(rows)[0], x, rows=CHUNK), None)


def batch_of(packed: Packed) -> dict[str, torch.Tensor]:
    """Megatron's, of the whole sequence."""
    return {
        "tokens": packed.ids[None], "labels": packed.targets.clamp(0)[None],
        "loss_mask": (packed.targets != IGNORED).float()[None],
        "position_ids": packed.positions[None], "cu_seqlens": packed.bounds[None],
    }  # fmt: skip


def train(given: argparse.Namespace, group: dist.ProcessGroup, device: torch.device) -> list[float]:
    """The losses of all steps. Every rank of the context parallel group runs this."""
    ranks = dist.get_world_size(group)
    torch.manual_seed(0)  # equal weights on all ranks
    config = config_of(given, ranks, device.type == "cpu")
    trained = Trained(config, 256 if given.small else 151936, given.tokens).to(device)
    mesh, precision = DeviceMesh.from_group(group, device.type), MixedPrecisionPolicy()
    if device.type == "cuda":  # angles of rotary embeddings are inputs of layers, and stay float32
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for part in (*trained.model.decoder.layers, trained):
        fully_shard(part, mesh=mesh, mp_policy=precision)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=given.rate, betas=(0.9, 0.95))
    progress = Progress(given, group)
    for packed in sequences(given, device):
        local = prepare_batch(batch_of(packed), trained.model, group)
        loss = trained(local) / (packed.targets != IGNORED).sum()
        (loss * ranks).backward()  # losses of ranks add up, and FSDP averages gradients
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress.end_step(loss)
    return progress.losses


def main() -> None:
    given = parser_of(__doc__).parse_args()
    device = start()
    parallel_state.initialize_model_parallel(context_parallel_size=dist.get_world_size())
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    train(given, parallel_state.get_context_parallel_group(), device)
    end_rank(0)


if __name__ == "__main__":
    main()
