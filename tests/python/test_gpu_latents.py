# SPDX-License-Identifier: Apache-2.0
"""Latent attention of DeepSeek's dims over GPUs, by latents and by keys and values."""

from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import dense
import pipeline_cases as cases
from magi_attention import masks
from magi_attention.functional.latent_price import LatentPrice
from magi_attention.plan import Plan
from on_gpu import NEEDS_GPU

pytestmark = NEEDS_GPU
GPUS = torch.cuda.device_count()
ROWS, HEADS, NOPE, ROPE, VALUE, LATENT = 700, 4, 128, 64, 128, 512
ALLOWED = 0.02  # of bfloat16, relative to the norms


def results(bound, whole, upstream, group, mode: str) -> list[torch.Tensor]:
    """out and the gradients of q, latents, rotated parts and the weight, whole."""
    local = [bound.dispatch(x).detach().requires_grad_() for x in whole[:3]]
    weight = whole[3].detach().requires_grad_()
    out, _ = bound.calc_latent_attn(*local, weight, mode=mode, heads_at_once=3)
    out.backward(bound.dispatch(upstream))
    of_weight = weight.grad.float()
    dist.all_reduce(of_weight, group=group)
    return [bound.undispatch(x) for x in (out.detach(), *(x.grad for x in local))] + [of_weight]


def agree(group, transport: str) -> None:
    mask = masks.from_cu_seqlens([0, 250, ROWS])
    plan = Plan.from_mask(
        mask, cp_size=group.size(), num_heads_q=HEADS, num_heads_kv=HEADS, head_dim=NOPE + ROPE,
        head_dim_v=VALUE,
    )  # fmt: skip
    bound = plan.bind(group, transport=transport)
    generator = torch.Generator("cuda").manual_seed(1)
    shapes = (
        (ROWS, HEADS, NOPE + ROPE), (ROWS, LATENT), (ROWS, ROPE), (HEADS * (NOPE + VALUE), LATENT),
        (ROWS, HEADS, VALUE),
    )  # fmt: skip
    made = (torch.randn(shape, generator=generator, device="cuda") for shape in shapes)
    *whole, upstream = (x.mul(0.05 if i == 3 else 1).bfloat16() for i, x in enumerate(made))
    exact = [x.double().requires_grad_() for x in whole]
    q, latent, rope, weight = exact
    both = (latent @ weight.T).view(ROWS, HEADS, NOPE + VALUE)
    k = torch.cat((both[..., :NOPE], rope.unsqueeze(1).expand(-1, HEADS, -1)), 2)
    visible = masks.to_matrix(mask).cuda().double()
    out, _, _ = dense.attention(q, k, both[..., NOPE:], visible)
    wanted = [out.detach(), *torch.autograd.grad(out, exact, upstream.double())]
    for mode in ("latent", "expanded"):
        found = results(bound, whole, upstream, group, mode)
        for name, f, w in zip(("out", "dq", "dlatent", "drope", "dweight"), found, wanted):
            error = ((f.double() - w).norm() / w.norm()).item()
            assert error < ALLOWED, f"{mode}: {name} is off by {error:.3g}"
    first, second = (results(bound, whole, upstream, group, "latent") for _ in range(2))
    for f, s in zip(first[:-1], second[:-1]):
        assert torch.equal(f, s)


@pytest.mark.parametrize("size", range(1, min(GPUS, 4) + 1))
@pytest.mark.parametrize("transport", ["auto", "nccl"])
def test_latents(gpu_ranks, size, transport):
    if size == 1 and transport == "nccl":
        pytest.skip("one rank moves nothing")
    environment = {"MAGI_ATTENTION_DETERMINISTIC_MODE": "1"}
    gpu_ranks.run(size, cases.environment, environment, agree, transport)


def layers_of_transformer_engine(group) -> None:
    """Gradients of Megatron's layers with the attention of Transformer Engine, and with ours."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

    import test_megatron as megatron
    from test_megatron_latents import MLA, MLATransformerConfig

    cp_group, flags = megatron.start(group.size()), {"multi_latent_attention": True}
    megatron.tensor_parallel.model_parallel_cuda_manual_seed(1)
    spec = partial(get_gpt_layer_with_transformer_engine_spec, qk_layernorm=True, **flags)
    sizes = {"qk_head_dim": NOPE, "qk_pos_emb_head_dim": ROPE, "v_head_dim": VALUE}
    sizes = MLA | sizes | {"kv_lora_rank": 64, "params_dtype": torch.bfloat16, "bf16": True}
    tokens = torch.arange(0, 5 * 128, 5)[None] % megatron.VOCABULARY
    batch = {"tokens": tokens, "labels": tokens, "loss_mask": torch.ones(1, 128)}
    batch["position_ids"] = torch.arange(128)[None]
    found, state = [], None
    for mode in (None, "expanded", "latent"):
        names = {"TransformerConfig": MLATransformerConfig, "get_gpt_layer_local_spec": spec}
        with torch.device("cpu"), mock.patch.multiple(megatron, **names):
            settings = megatron.config(group.size() if mode else 1, **sizes)
            model = megatron.gpt(settings, mode is not None).bfloat16().cuda()
        state = state or model.state_dict()
        model.load_state_dict(state, strict=False)
        rows = batch if mode is None else megatron.ours.prepare_batch(batch, model, cp_group)
        params = rows.get("packed_seq_params")
        with mock.patch.object(LatentPrice, "mode", mode):
            losses = model(rows["tokens"], rows["position_ids"], None, labels=rows["labels"],
                           packed_seq_params=params)  # fmt: skip
        (losses.float() * rows["loss_mask"]).sum().backward()
        parts = [g.float().flatten() for n, g in megatron.gradients(model).items() if "attent" in n]
        found.append(torch.cat(parts))
        if mode is not None:
            dist.all_reduce(found[-1], group=cp_group)
            error = ((found[-1] - found[0]).norm() / found[0].norm()).item()
            assert error < 0.05, f"{mode}: gradients are off by {error:.3g}"


def test_layers_of_transformer_engine(gpu_ranks):
    pytest.importorskip("megatron.core")
    pytest.importorskip("transformer_engine.pytorch")
    gpu_ranks.run(GPUS, layers_of_transformer_engine)
