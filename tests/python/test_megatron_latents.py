# SPDX-License-Identifier: Apache-2.0
"""Latent attention (MLA) of Megatron-LM, by keys and values and by latents."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from unittest import mock

import pytest

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import MLATransformerConfig
from megatron.core.transformer.dot_product_attention import DotProductAttention

import test_megatron
from magi_attention.functional.latent_attn import LatentAttention
from magi_attention.functional.latent_price import LatentPrice
from magi_attention.integrations._megatron_latents import _normed
from ranks import over
from test_megatron import (
    MTPLossAutoScaler,
    close,
    config,
    hidden,
    packed_batch,
    padded_in_place,
    reference,
    shared_out,
    start,
    under_megatrons_parameters,
)
from test_megatron import on_cpu as without_gpu

MLA = dict(
    multi_latent_attention=True, num_query_groups=4, kv_channels=8, q_lora_rank=12,
    kv_lora_rank=10, qk_head_dim=4, qk_pos_emb_head_dim=4, v_head_dim=8, rope_type="rope",
    rotary_scaling_factor=4.0, original_max_position_embeddings=32,
)  # fmt: skip


class DenseLatentAttention(DotProductAttention):
    """Megatron's own for latent attention whose keys and values have kv_channels elements."""

    def __init__(self, *arguments, k_channels=None, v_channels=None, **keywords) -> None:
        super().__init__(*arguments, **keywords)


def latent_spec():
    spec = get_gpt_layer_local_spec(multi_latent_attention=True, qk_layernorm=True)
    spec.submodules.self_attention.submodules.core_attention = DenseLatentAttention
    return spec


@contextlib.contextmanager
def on_cpu():
    """Configs and specs are those of latent attention. Megatron takes any module of Transformer
    Engine for one that is installed.
    """
    ours = dict(TransformerConfig=MLATransformerConfig, get_gpt_layer_local_spec=latent_spec)
    place = "megatron.core.transformer.multi_latent_attention.HAVE_TE"
    with without_gpu(), mock.patch(place, False), mock.patch.multiple(test_megatron, **ours):
        yield


def check(cp_size: int, mode: str, place=lambda batch: batch, **changes) -> None:
    """Packed documents, as place gives them, under a plan that finds one way faster: the gradients
    of Megatron's own attention.
    """
    settings, calls, own = {**MLA, **changes}, [], LatentAttention.forward
    with (
        on_cpu(),
        mock.patch.object(LatentPrice, "mode", mode),
        mock.patch.object(LatentAttention, "forward", lambda *x: calls.append(1) or own(*x)),
    ):
        group, batch = start(cp_size), packed_batch()
        wanted = reference(config(**settings), batch, hidden())
        loss, found, _ = shared_out(group, config(cp_size, **settings), place(batch))
        assert abs(loss - wanted[0]) < 1e-5 * abs(wanted[0])
        assert len(calls) == (2 if mode == "latent" else 0)
        close(found, wanted[1])


@over(4)
@pytest.mark.parametrize("mode", ["latent", "expanded"])
@pytest.mark.parametrize("size, rope_type", [(2, "rope"), (4, "rope"), (1, "yarn")])
def test_packed_documents(group, mode, size, rope_type):
    """RoPE by the rows of a rank; with and without a latent of q."""
    changes = {"q_lora_rank": None} if size == 4 else {}
    check(size, mode, rope_type=rope_type, **changes)


@over(4)
@pytest.mark.parametrize("mode", ["latent", "expanded"])
@pytest.mark.parametrize("size", [1, 2])
def test_documents_padded_in_place(group, mode, size):
    check(size, mode, padded_in_place)


@over(4)
def test_narrower_values_and_several_tokens(group):
    """Values of another dim than keys, and multi-token prediction: both ways give the same."""
    several = dict(v_head_dim=6, mtp_num_layers=1, mtp_loss_scaling_factor=0.3)
    results = []
    with on_cpu():
        group, batch = start(2), packed_batch()
        MTPLossAutoScaler.set_loss_scale(torch.ones(1))
        for mode in ("latent", "expanded"):
            with mock.patch.object(LatentPrice, "mode", mode):
                settings = config(2, **{**MLA, **several}, calculate_per_token_loss=True)
                results.append(shared_out(group, settings, batch))
    (loss, found, local), (other, wanted, _) = results
    assert local["packed_seq_params"].plan.head_dim_v == 8
    assert abs(loss - other) < 1e-9 * abs(other)
    close(found, wanted, 1e-9)


@pytest.mark.parametrize("is_rms", [False, True])
def test_norms_in_projections(is_rms):
    """Those that Transformer Engine's projections apply by themselves."""
    x, weight, bias = torch.randn(5, 8), torch.randn(8), torch.randn(8)
    up = SimpleNamespace(layer_norm_weight=weight, layer_norm_bias=None if is_rms else bias)
    settings = SimpleNamespace(
        layernorm_zero_centered_gamma=is_rms, layernorm_epsilon=1e-5,
        normalization="RMSNorm" if is_rms else "LayerNorm",
    )  # fmt: skip
    found = _normed(up, x, settings)
    if is_rms:
        wanted = x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt() * (1 + weight)
    else:
        scale = (x.var(1, keepdim=True, correction=0) + 1e-5).rsqrt()
        wanted = (x - x.mean(1, keepdim=True)) * scale * weight + bias
    assert torch.allclose(found, wanted, atol=1e-5)
    assert _normed(SimpleNamespace(), x, settings) is x


@over(4)
def test_batches_of_megatron(group):
    """On one rank: packed parameters of Megatron."""
    with on_cpu():
        start(1)
        batch = packed_batch()
        wanted = reference(config(**MLA), batch, hidden())
        close(under_megatrons_parameters(config(**MLA), batch), wanted[1])
