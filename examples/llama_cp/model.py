# SPDX-License-Identifier: Apache-2.0
"""A Llama in plain PyTorch, with the parameter names of transformers, and the same from there.

Attention is an argument: a function of q [rows, heads, dim] and k, v [rows, kv_heads, dim].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class RmsNorm(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.hidden))
        self.epsilon = shape.norm_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


def turns_of(positions: torch.Tensor, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Rotary position embeddings, for all layers: [rows, 2, head_dim / 2], cosines and sines."""
    half = shape.head_dim // 2
    exponents = torch.arange(half, device=positions.device, dtype=torch.float32) / half
    angles = positions[:, None].float() * shape.rope_theta**-exponents
    return torch.stack((angles.cos(), angles.sin()), 1).to(dtype)


def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """x [rows, heads, dim] with its rotary position embedding."""
    cos, sin = turns.unsqueeze(1).unbind(2)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class SelfAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, attend: Attention) -> torch.Tensor:
        q, k, v = (
            proj(x).unflatten(1, (-1, self.shape.head_dim))
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = attend(rotate(q, turns), rotate(k, turns), v)
        return self.o_proj(out.flatten(1))


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = SelfAttention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = RmsNorm(shape)
        self.post_attention_layernorm = RmsNorm(shape)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, attend: Attention) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attention):
        x = self.embed_tokens(ids)
        turns = turns_of(positions, self.shape, x.dtype)
        for layer in self.layers:
            x = layer(x, turns, attend)
        return self.norm(x)


class Llama(nn.Module):
    """ids, positions [rows] -> logits [rows, vocabulary]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Backbone(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attention):
        return self.lm_head(self.model(ids, positions, attend))


def make_plain(shape: Shape) -> Llama:
    """The same weights in every process and every run."""
    torch.manual_seed(0)
    model = Llama(shape)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02 if shape.hidden > 256 else 0.05)
    return model


def make_transformers(shape: Shape, implementation: str) -> nn.Module:
    """The model of transformers with the weights of make_plain."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from magi_attention.integrations.transformers import register

    register()
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        attn_implementation=implementation,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(make_plain(shape).state_dict())
    return model
