#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a model of Qwen3-8B's shape on one sequence at a time, which all ranks share: plain
PyTorch with FSDP2, the model from transformers.

    torchrun --nproc-per-node 8 pytorch_fsdp.py                        # 1,048,576 tokens
    torchrun --nproc-per-node 8 pytorch_fsdp.py --weights Qwen3-8B     # a folder of safetensors
    torchrun --nproc-per-node 2 pytorch_fsdp.py --small --tokens 512   # to try it, CPUs will do
"""

from __future__ import annotations

import argparse
import pathlib

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from magi_attention import Plan, masks
from magi_attention.integrations.transformers import register
from magi_attention.training import Offload, loss_over_rows, over_rows
from recipe import IGNORED, Packed, Progress, end_rank, parser_of, sequences, start

QWEN3_8B = dict(
    hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, vocab_size=151936, rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
)  # fmt: skip
SMALL = QWEN3_8B | dict(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=256,
)  # fmt: skip
CHUNK = 8192  # rows whose logits, and whose inside of the MLP, are held at a time


class Trained(torch.nn.Module):
    """The sum of the losses of a rank's rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = keep_little(model)

    def forward(self, packed: Packed, bound) -> torch.Tensor:
        hidden = self.model.model(
            input_ids=bound.dispatch(packed.ids)[None],
            position_ids=bound.dispatch(packed.positions)[None],
            use_cache=False,
            magi_plan=bound,
        ).last_hidden_state
        targets = bound.dispatch(packed.targets, IGNORED)
        return loss_over_rows(self.model.lm_head, hidden[0], targets, rows=CHUNK)


def keep_little(model: PreTrainedModel) -> PreTrainedModel:
    """The backward computes layers again, but not attention. What is kept goes to the host."""
    host = Offload()
    enable = getattr(model, "activation_checkpointing_enable", None)  # of transformers since 2026
    enable = enable or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, "context_fn": host.save_attention})
    host.over(model.model)
    for layer in model.model.layers:
        layer.mlp.forward = in_chunks(layer.mlp.forward)
    return model


def in_chunks(mlp):
    return lambda x: over_rows(mlp, x, rows=CHUNK, dim=1)


def make_model(given: argparse.Namespace, mesh: DeviceMesh) -> Trained:
    """Sharded over all ranks; on GPUs products are of bfloat16, weights and AdamW of float32."""
    config = Qwen3Config(**(SMALL if given.small else QWEN3_8B))
    if given.weights:
        config = AutoConfig.from_pretrained(given.weights)
    config.num_hidden_layers = given.layers or config.num_hidden_layers
    register()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation="magi", dtype=torch.float32
        )
    trained, precision = Trained(model).train(), MixedPrecisionPolicy()
    if mesh.device_type == "cuda":
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.model.layers, trained):
        fully_shard(part, mesh=mesh, mp_policy=precision)
    trained.to_empty(device=mesh.device_type)
    with torch.device(mesh.device_type):  # its table is not among the weights
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    fill(model, given.weights)
    return trained


@torch.no_grad()
def fill(model: PreTrainedModel, weights: pathlib.Path | None) -> None:
    """One parameter after the other, so that no rank ever holds all of them."""
    holders = {}
    for path in sorted(weights.glob("*.safetensors")) if weights else ():
        file = safe_open(path, "pt")
        holders |= dict.fromkeys(file.keys(), file)
    generator = torch.Generator(model.device).manual_seed(0)
    for name, parameter in model.named_parameters():
        if weights:
            whole = holders[name].get_tensor(name).to(parameter.device, parameter.dtype)
        elif parameter.ndim == 1:  # of a norm
            whole = torch.ones(parameter.shape, device=parameter.device)
        else:
            whole = torch.empty(parameter.shape, device=parameter.device)
            whole.normal_(std=0.02, generator=generator)
        mesh, placements = parameter.device_mesh, parameter.placements
        parameter.copy_(distribute_tensor(whole, mesh, placements, src_data_rank=None))


def train(given: argparse.Namespace, group: dist.ProcessGroup, device: torch.device) -> list[float]:
    """The losses of all steps. Every rank of the group runs this."""
    trained = make_model(given, DeviceMesh.from_group(group, device.type))
    config, ranks = trained.model.config, dist.get_world_size(group)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=given.rate, betas=(0.9, 0.95))
    progress = Progress(given, group)
    for packed in sequences(given, device):
        plan = Plan.from_mask(
            masks.from_cu_seqlens(packed.bounds), cp_size=ranks, head_dim=config.head_dim,
            num_heads_q=config.num_attention_heads, num_heads_kv=config.num_key_value_heads,
        )  # fmt: skip
        loss = trained(packed, plan.bind(group)) / (packed.targets != IGNORED).sum()
        (loss * ranks).backward()  # losses of ranks add up, and FSDP averages gradients
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress.end_step(loss)
    return progress.losses


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--weights", type=pathlib.Path, help="a folder; default: random ones")
    return parser.parse_args(arguments)


def main() -> None:
    given = parse()
    device = start()
    train(given, dist.group.WORLD, device)
    end_rank(0)


if __name__ == "__main__":
    main()
