# SPDX-License-Identifier: Apache-2.0
"""Latent attention (MLA) of Megatron-LM under plans: rotary tables by the rows of a rank, and
latents in place of keys and values where the plan finds them faster.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MultiLatentAttention
from torch.nn.functional import layer_norm, rms_norm

from magi_attention._native.tensors import PLAIN_TYPES
from magi_attention.integrations._bound import bound_of
from magi_attention.integrations._megatron_batch import MagiPackedSeqParams
from magi_attention.training.parts import hiding

_UP = "linear_kv_up_proj"
# Of Megatron's own and of Transformer Engine: others may compute more than their weight says.
_LINEAR = {"ColumnParallelLinear", "TEColumnParallelLinear", "TELayerNormColumnParallelLinear"}


class _LatentsOfPlans:
    """Before Megatron's latent attention."""

    def get_query_key_value_tensors(
        self, hidden_states: torch.Tensor, key_value_states: Any = None, position_ids: Any = None,
        packed_seq_params: Any = None, inference_context: Any = None, **others: Any,
    ) -> tuple:  # fmt: skip
        """Megatron's, of which keys are their rotated parts [rows, 1, 1, dim] and values latents
        [rows, 1, dim] where latents travel.
        """
        get = super().get_query_key_value_tensors
        params = packed_seq_params
        if not isinstance(params, MagiPackedSeqParams):
            return get(
                hidden_states, key_value_states, position_ids, params, inference_context, **others
            )
        # Without packed parameters rows keep the axis of a batch of one, as rotary tables have it.
        given = hidden_states, key_value_states, position_ids, None, inference_context
        with hiding(self.rotary_pos_emb, rows_at=params.rotary_rows):
            if not self._takes_latents(params):
                return get(*given, **others)
            up = _NoProjection(self)
            with hiding(self, **{_UP: up}):
                query, key, _, *rest = get(*given, **others)
        nope = self.config.qk_head_dim
        self.core_attention.__dict__["up_projection"] = getattr(self, _UP).weight
        return (
            query,
            key[..., :1, nope:],
            _normed(getattr(self, _UP), up.latent, self.config),
            *rest,
        )

    def _takes_latents(self, params: MagiPackedSeqParams) -> bool:
        config, core, up = self.config, self.core_attention, getattr(self, _UP)
        is_plain = type(up).__name__ in _LINEAR and type(up.weight) in PLAIN_TYPES
        is_more = config.fp8 or config.fp4 or self.recompute_up_proj or core.has_max_logits
        is_more = is_more or config.delay_wgrad_compute
        if not is_plain or is_more or config.softmax_type != "vanilla":
            return False
        if config.tensor_model_parallel_size > 1 or config.apply_rope_fusion:
            return False
        sizes = config.kv_lora_rank, config.qk_pos_emb_head_dim
        bound = bound_of(params.plan_of(core.window))
        return bound.latents.mode("auto", *sizes) == "latent"


class _NoProjection:
    """Replaces a projection of latents. Returns zeros that take no memory; latent: its input."""

    def __init__(self, module: MultiLatentAttention) -> None:
        config = module.config
        heads = module.num_attention_heads_per_partition
        self._width = heads * (config.qk_head_dim + config.v_head_dim)
        self.latent: torch.Tensor | None = None

    def __call__(self, latent: torch.Tensor) -> tuple[torch.Tensor, None]:
        self.latent = latent
        return latent.new_zeros(()).expand(*latent.shape[:-1], self._width), None


def _normed(up: Any, latent: torch.Tensor, config: Any) -> torch.Tensor:
    """The factor of a projection's weight: Transformer Engine's projection may include the norm."""
    weight = getattr(up, "layer_norm_weight", None)
    if weight is None:
        return latent
    weight = weight + 1 if config.layernorm_zero_centered_gamma else weight
    if config.normalization == "RMSNorm":
        return rms_norm(latent, weight.shape, weight, config.layernorm_epsilon)
    return layer_norm(latent, weight.shape, weight, up.layer_norm_bias, config.layernorm_epsilon)


def put_latents_under_plans(module: torch.nn.Module) -> None:
    """Makes Megatron's latent attention follow the plans of prepare_batch."""
    if isinstance(module, MLASelfAttention) and not isinstance(module, _LatentsOfPlans):
        kind = type(module)
        module.__class__ = type(kind.__name__, (_LatentsOfPlans, kind), {})
