# SPDX-License-Identifier: Apache-2.0
"""What is compared: one run is a model, an attention and a way to share the ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention import SDPBackend, sdpa_kernel

import model as llama
from magi_attention import Plan, api
from text import IGNORED, Packed


@dataclasses.dataclass(frozen=True)
class Run:
    """attention: "math" and "efficient" are back ends of SDPA, "leaky" is SDPA whose documents see
    each other (what happens where a mask is dropped), "magi" is context parallel over `cp` ranks.
    """

    model: str  # "plain" or "transformers"
    attention: str
    cp: int = 1
    is_reversed: bool = False  # sequences of a step in reverse, so that sums run in another order

    @property
    def name(self) -> str:
        attention = f"cp {self.cp}" if self.attention == "magi" else f"SDPA {self.attention}"
        return f"{self.model}, {attention}" + (", reversed" if self.is_reversed else "")

    @property
    def is_sdpa(self) -> bool:
        return self.attention in ("math", "efficient")

    def make_model(self, shape: llama.Shape) -> torch.nn.Module:
        if self.model == "plain":
            return llama.make_plain(shape)
        implementation = "magi" if self.attention == "magi" else "sdpa"
        return llama.make_transformers(shape, implementation)


def sum_of_losses(
    run: Run, model: torch.nn.Module, shape: llama.Shape, packed: Packed, mesh: DeviceMesh
) -> torch.Tensor:
    """Loss of this rank's rows of a sequence, summed over tokens."""
    part = _context_parallel if run.attention == "magi" else _alone
    logits, targets = part(run, model, shape, packed, mesh)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")


def _context_parallel(run, model, shape, packed, mesh):
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    if run.model == "plain":  # the functions of MagiAttention
        bounds = packed.bounds.cpu()
        key = api.magi_attn_varlen_key(
            bounds, bounds, *heads, cp_group_or_mesh=mesh["cp"], causal=True
        )
        ids, positions = api.dispatch(packed.ids, key), api.dispatch(packed.positions, key)

        def attend(q, k, v):
            return api.calc_attn(q, k, v, key)[0]

        return model(ids, positions, attend), api.dispatch(packed.targets, key, IGNORED)
    # a plan as a value, passed as a keyword
    from magi_attention.integrations.transformers import shard

    bounds = packed.bounds.cpu()
    q_ranges, k_ranges, types, rows, _ = api.infer_attn_mask_from_cu_seqlens(
        bounds, bounds, causal=True
    )
    plan = Plan.from_ranges(
        q_ranges, k_ranges, types, rows, cp_size=run.cp, num_heads_q=heads[0],
        num_heads_kv=heads[1], head_dim=heads[2],
    ).bind(mesh["cp"].get_group())  # fmt: skip
    arguments = shard(plan, packed.ids, position_ids=packed.positions)
    return model(**arguments).logits[0], plan.dispatch(packed.targets, IGNORED)


def _visible(packed: Packed, is_leaky: bool) -> torch.Tensor:
    """bool [rows, rows]: earlier rows of the same document."""
    rows = torch.arange(len(packed.ids), device=packed.ids.device)
    causal = rows[:, None] >= rows
    if is_leaky:
        return causal
    document = torch.bucketize(rows, packed.bounds[1:], right=True)
    return causal & (document[:, None] == document)


def _alone(run, model, shape, packed, mesh):
    visible = _visible(packed, run.attention == "leaky")
    is_cuda = visible.is_cuda
    efficient = SDPBackend.EFFICIENT_ATTENTION if is_cuda else SDPBackend.FLASH_ATTENTION
    backend = SDPBackend.MATH if run.attention == "math" else efficient
    with sdpa_kernel(backend):
        if run.model == "plain":
            logits = model(packed.ids, packed.positions, _sdpa(visible, shape))
        else:
            logits = model(
                input_ids=packed.ids[None],
                position_ids=packed.positions[None],
                attention_mask=visible[None, None],
                use_cache=False,
            ).logits[0]
    return logits, packed.targets


def _sdpa(visible: torch.Tensor, shape: llama.Shape) -> Callable:
    repeats = shape.heads // shape.kv_heads

    def attend(q, k, v):
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return out[0].transpose(0, 1)

    return attend
