# SPDX-License-Identifier: Apache-2.0
"""Causal language models of transformers in tiny configurations, under a plan of two packed
documents, against each document by itself with the model's own attention.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from unittest import mock

import torch
import torch.distributed as dist

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from dense import gradients
    from magi_attention.functional.latent_attn import LatentAttention
    from magi_attention.integrations import transformers as ours
    from magi_attention.integrations._mask_spec import AttnMaskSpec
    from magi_attention.integrations._model_checks import first_position
    from magi_attention.integrations._model_plans import config_of, make_plan, plans_of_documents
    from magi_attention.integrations._model_recurrent import recurrences_of

VOCABULARY = 64
DOCUMENTS = (13, 19)
TOKENS = sum(DOCUMENTS) - len(DOCUMENTS)
MODEL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
_HIDDEN, _HEADS, _LAYERS = 32, 4, 2
# Sizes by the names that configurations have for them; what a configuration has not is not given.
_SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim"), _HIDDEN),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "word_embed_proj_dim"), _HIDDEN),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff",
         "ffn_hidden_size", "d_inner", "feed_forward_size", "dim_ff", "dff"), 48,
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers",
         "encoder_layers", "num_decoder_layers", "num_blocks"), _LAYERS,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
         "encoder_attention_heads", "num_decoder_attention_heads"), _HEADS,
    ),
    "num_key_value_heads": 2, "head_dim": 8, "d_head": 8, "dim_head": 8, "d_kv": 8,
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY,
    "max_position_embeddings": 128, "n_positions": 128, "n_ctx": 128, "max_seq_len": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4,
    ),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts", "moe_topk"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
         "moe_ffn_hidden_size"), 16,
    ),
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "mamba_d_head": 16, "mamba_n_heads": 4, "mamba_num_heads": 4,
    "mamba_head_dim": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "n_groups": 1, "state_size": 8,
    "ssm_state_size": 8, "chunk_size": 8, "mamba_chunk_size": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_head_dim": 8, "linear_num_heads": 4, "num_experts_per_token": 2,
    "index_n_heads": 16, "index_head_dim": 16, "index_topk": 4, "attention_dropout": 0.0,
    **dict.fromkeys(
        ("dropout", "activation_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
         "attn_pdrop", "attention_probs_dropout_prob", "hidden_dropout_prob", "residual_dropout"),
        0.0,
    ),
}  # fmt: skip
_WINDOW = 8
# What a model needs beyond sizes.
_DECODERS = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
    "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta",
    "xlm-roberta-xl",
)  # fmt: skip
_LINEAR = (
    "qwen3_next", "qwen3_5_text", "granitemoehybrid", "olmo_hybrid", "bailing_hybrid",
    "kimi_linear",
)  # fmt: skip
_SPECIAL = {
    **{name: {"is_decoder": True} for name in _DECODERS},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": _WINDOW},
    **{name: {"layer_types": ["conv", "full_attention"]} for name in ("lfm2", "lfm3", "lfm2_moe")},
    **{name: {"layer_types": ["linear_attention", "full_attention"]} for name in _LINEAR},
    "bamba": {"attn_layer_indices": [1]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "qwen3_5": {"text_config": {"layer_types": ["linear_attention", "full_attention"]}},
    "qwen4_exp": {
        "text_config": dict(
            layer_types=["linear_attention"] * 2, ple_layer_ids=[2], ple_embed_dim=32,
            heads_per_ngram=2, ngram_vocab_size_base=50, eos_token_id=2, split_ngram_parts=1,
        )
    },
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "mpt": {},
    "prophetnet": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": dict(
        num_hidden_layers=2, layers_block_type=["mamba", "hybrid"], attention_head_dim=16,
        attention_hidden_size=64, mamba_headdim=8, n_mamba_heads=8, num_key_value_heads=4,
        kv_channels=16,
    ),
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# Names of sizes that a type has but refuses.
_REFUSED = {
    "falcon": {"head_dim"}, "xlstm": {"v_head_dim"}, "mpt": {"attn_pdrop"},
    "prophetnet": {"num_hidden_layers"}, "musicgen": {"dropout"}, "musicgen_melody": {"dropout"},
    "gpt_neo": {"num_hidden_layers"},
}  # fmt: skip


def _has(config, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # a size that differs between layers
        return False


def _sizes_of(kind: type) -> dict:
    """Sizes by the names that a kind of configuration has, those of its parts too."""
    default = kind()
    given = {name: size for name, size in _SIZES.items() if _has(default, name)}
    if isinstance(getattr(default, "sliding_window", None), int):
        given["sliding_window"] = _WINDOW
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or ()))
    if set(kinds) == {"full_attention", "sliding_attention"}:  # a rule may give two layers one kind
        given["layer_types"] = kinds
    if hasattr(default, "kv_lora_rank"):  # latent attention
        given["num_key_value_heads"] = _HEADS
    for name in getattr(kind, "sub_configs", {}):
        part = getattr(default, name, None)
        if isinstance(part, transformers.PreTrainedConfig):
            given[name] = type(part)(**_sizes_of(type(part)))
    return given


def tiny_config(model_type: str):
    """The smallest configuration of a type that keeps its kinds of layers."""
    kind = CONFIG_MAPPING[model_type]
    given = _sizes_of(kind)
    for name, value in _SPECIAL.get(model_type, {}).items():
        part = given.get(name)
        if isinstance(part, transformers.PreTrainedConfig):
            value = type(part)(**{**_sizes_of(type(part)), **value})
        given[name] = value
    config = kind(**{k: v for k, v in given.items() if k not in _REFUSED.get(model_type, ())})
    config._experts_implementation = "eager"  # the others know no float64
    return config


def make(model_type: str) -> torch.nn.Module:
    """A tiny model in float64; equal types give equal weights. ValueError for what stays large."""
    config = tiny_config(model_type)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > 1 << 21:
        raise ValueError(f"{model_type} has {size} parameters in its tiny configuration")
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    for parameter in model.parameters():
        if parameter.dim() < 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return model.double().eval()


def batch():
    """input_ids and position_ids [1, rows] of the packed documents."""
    ids = torch.randint(
        3, VOCABULARY, (1, sum(DOCUMENTS)), generator=torch.Generator().manual_seed(1)
    )
    return ids, torch.cat([torch.arange(n) for n in DOCUMENTS])[None]


def _alone(model):
    """Logits [rows, vocabulary] and gradients of every document by itself."""
    logits = [
        model(input_ids=ids, use_cache=False).logits[0] for ids in batch()[0].split(DOCUMENTS, 1)
    ]
    logits = torch.cat(logits)
    _loss(logits).backward()
    found = gradients(model)
    model.zero_grad()
    return logits.detach(), found


def _loss(logits):
    return logits.double().square().sum()


def loss_of_tokens(logits: torch.Tensor) -> torch.Tensor:
    """That of the next tokens of each document, over all of them."""
    parts = zip(logits.split(DOCUMENTS), batch()[0][0].split(DOCUMENTS))
    of_each = [
        torch.nn.functional.cross_entropy(rows[:-1], ids[1:], reduction="sum")
        for rows, ids in parts
    ]
    return sum(of_each) / TOKENS


def labelled() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """input_ids, labels and position_ids of the packed documents."""
    ids, positions = batch()
    labels = ids.clone()
    labels[0, [0, DOCUMENTS[0]]] = -100
    return ids, labels, positions


def _under_a_plan(model, group: dist.ProcessGroup | None):
    """Logits of the whole sequence, sums over ranks of gradients and of the model's own loss."""
    model.set_attn_implementation("magi")
    try:
        plans = plans_of_documents(model, DOCUMENTS, group)
    except ValueError:  # a mask of their own, which a caller may give by hand
        plans = make_plan(AttnMaskSpec.varlen(DOCUMENTS), (_HEADS, 2, 8), group)
    first = next(iter(plans.values())) if isinstance(plans, dict) else plans
    ids, labels, positions = labelled()
    arguments = ours.shard(first, ids, labels, positions + first_position(model), model)
    arguments["magi_plan"] = plans
    out = model(**arguments, num_items_in_batch=TOKENS)
    logits, loss = out.logits[0], out.loss.detach().double()
    bound = ours.bound_of(first)
    rows = bound.rows.num_valid
    _loss(logits[:rows]).backward()
    found = gradients(model)
    if group is not None:
        dist.all_reduce(loss, group=group)
        for name, parameter in model.named_parameters():
            gradient = found.setdefault(name, torch.zeros_like(parameter))
            dist.all_reduce(gradient, group=group)
    return bound.undispatch(logits.detach()), found, loss


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return (found - wanted).abs().max().item() / max(1.0, wanted.abs().max().item())


def outcome(model_type: str, group: dist.ProcessGroup | None = None) -> tuple[str, str]:
    """("right", its types of layers), ("refused", in which words), ("wrong", how far), ("failed",
    with what error), or ("not built", why).
    """
    try:
        model = make(model_type)
        kinds = layer_types(model)
        wanted, wanted_gradients = _alone(model)
    except Exception as error:
        return "not built", f"{type(error).__name__}: {error}"
    try:
        logits, found, loss = _under_a_plan(model, group)
    except Exception as error:
        kind = "refused" if "allowed:" in str(error) else "failed"
        return kind, f"{type(error).__name__}: {error}"
    errors = [error_of(logits, wanted), error_of(loss, loss_of_tokens(wanted))]
    errors += [error_of(found[name], gradient) for name, gradient in wanted_gradients.items()]
    worst = max(errors)
    if worst < 1e-4:
        return "right", kinds
    return "wrong", f"{errors[0]:.2g} {errors[1]:.2g} {worst:.2g}"


def layer_types(model) -> str:
    """The types of layers that a model's configuration names, and the recurrent layers and
    convolutions that it has.
    """
    config = config_of(model)
    names = ("layer_types", "layers_block_type", "block_types")
    kinds = next(filter(None, (getattr(config, name, None) for name in names)), ())
    named = ", ".join(f"`{kind}`" for kind in dict.fromkeys(kinds)) or "none named"
    found = sorted({kind for module in model.modules() for kind in recurrences_of(module)})
    return f"{named}, by " + ", ".join(f"`{kind}`" for kind in found) if found else named


def walk(group, model_types) -> dict[str, tuple[str, str]]:
    """Outcomes of several types."""
    transformers.logging.set_verbosity(50)
    ours.register()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {model_type: outcome(model_type, group) for model_type in model_types}


@contextlib.contextmanager
def by(way: str, takes_latents: bool | None = None):
    """Under plans that find this way faster, "latent" or "expanded". Checks that layers take it, or
    latents or not.
    """
    attend = mock.Mock(side_effect=ours.attend_to_latents)
    mode = mock.patch.object(LatentAttention, "mode", lambda self, *_: way)
    with mode, mock.patch.object(ours, "attend_to_latents", attend):
        yield
    assert attend.called == (way == "latent" if takes_latents is None else takes_latents)


def used_masks(model_type: str) -> None:
    """Without a plan, a model that computes with its mask by itself gets what "sdpa" gives it."""
    ours.register()
    ids = batch()[0].repeat(2, 1)
    padding = torch.ones_like(ids)
    padding[1, :7] = 0
    found = []
    for implementation in ("sdpa", "magi"):
        model = make(model_type)
        model.set_attn_implementation(implementation)
        found.append(model(input_ids=ids, attention_mask=padding, use_cache=False).logits)
    assert (found[0] - found[1]).abs().max() < 1e-9
