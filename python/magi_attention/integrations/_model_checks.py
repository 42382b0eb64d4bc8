# SPDX-License-Identifier: Apache-2.0
"""Which models of transformers a plan reaches whole, or by groups of kv heads, and why it does not
reach others.
"""

from __future__ import annotations

import inspect
import re
import weakref
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from magi_attention.common._arguments import TRY
from magi_attention.integrations._model_calls import PLAN_KEYWORD
from magi_attention.integrations._model_plans import INDEXED_LAYERS, UNATTENDED_LAYERS, config_of
from magi_attention.integrations._model_recurrent import is_served
from magi_attention.integrations._model_rows import forwards_of, is_balanced
from magi_attention.training.parts import Changes, cannot_split, come_by_groups, part_of

# Types of layers whose rows see each other through attention alone.
_ATTENTION_LAYERS = {
    "attention", "full_attention", "sliding_attention", "chunked_attention", "dense", "sparse",
}  # fmt: skip
# And those that magi_attention.recurrent serves, alone or beside attention, or an indexer.
_MIXING_LAYERS = {*UNATTENDED_LAYERS, "hybrid", "hybrid_sliding", INDEXED_LAYERS}
# Modules that compute over rows in the order in which a rank holds them.
_MIXERS = re.compile(
    r"Mamba|Recurrent(?!Gemma)|RecurrentBlock|LinearAttention|LightningAttention|DeltaNet|"
    r"DeltaAttention|ShortConv|RgLru|Rwkv|LSTM|SSM|Indexer|Compressor|Pooler"
)
_HOLDERS = re.compile(r"(Layer|Model|ForCausalLM|ForConditionalGeneration)$")
_MIXING = (torch.nn.Conv1d, torch.nn.RNNBase, torch.nn.modules.batchnorm._NormBase)
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech|perceiver|resampler|qformer|vq")
# Heads that take one result of all rows, and those that have labels of their own for each row.
_POOLED = re.compile(r"For(Sequence|Question|Multiple|NextSentence|PreTraining)|DoubleHeads")
_OTHER_HEADS = re.compile(r"For(?!CausalLM|ConditionalGeneration)[A-Z]")
# What a forward computes beside its loss over tokens, and the options that say how much of it.
_OWN_BALANCE = re.compile(r"((aux\w*|z|balanc\w*)_loss\w*)\s*(?:\(|=(?!=|\s*None))")
_SHARE = re.compile(r"(aux\w*|z|balanc\w*)_loss")
# Projections and norms of single heads, of layers that come by groups; others count their heads.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_NORMS = {f"{of}_{name}" for of in ("q", "k", "query", "key") for name in ("norm", "layernorm")}
_COUNTS = {"num_heads", "num_attention_heads", "num_key_value_heads"}
_fit: weakref.WeakSet = weakref.WeakSet()  # models whose layers have been seen to fit


def model_behind(model: torch.nn.Module) -> torch.nn.Module:
    """The model of transformers behind compilers, data parallelism and adapters. ValueError for
    adapters that add tokens, TypeError for other modules.
    """
    while not isinstance(model, PreTrainedModel):
        if virtual_tokens(model):
            raise ValueError(virtual_tokens(model))
        inner = None
        for name in ("_orig_mod", "module", "base_model", "model"):
            inner = getattr(model, name, None)
            if isinstance(inner, torch.nn.Module):
                break
        if not isinstance(inner, torch.nn.Module):
            raise TypeError(
                f"model is a {type(model).__name__}; allowed: models of transformers, and wrappers"
            )
        model = inner
    return model


def virtual_tokens(wrapper: torch.nn.Module) -> str | None:
    """Says what tokens peft's wrapper puts before a sequence, as a sentence."""
    adapter = getattr(wrapper, "active_peft_config", None)
    if not getattr(adapter, "is_prompt_learning", False):
        return None
    return (
        f"{type(adapter).__name__} puts {adapter.num_virtual_tokens} virtual tokens before a "
        "sequence, of which no plan knows; allowed: adapters without them, such as LoRA"
    )


def misfit(model: PreTrainedModel, attention: object) -> str | None:
    """Says what of the model a plan does not reach, as a sentence; None where it reaches
    everything.
    """
    # Asked each time: models are set to other attention and back, for generation say.
    implementation = getattr(config_of(model), "_attn_implementation", None)
    if ALL_ATTENTION_FUNCTIONS.get(implementation) is not attention:
        step = f"{TRY}use(model)" if getattr(model, "_supports_attention_backend", False) else ""
        return (
            f"{type(model).__name__} attends through {implementation!r}, which no plan reaches; "
            f"allowed: models that take attn_implementation='magi'{step}"
        )
    if model in _fit:
        return None
    found = _misfit_of_layers(model)
    if found is None:
        _fit.add(model)
    return found


def _misfit_of_layers(model: PreTrainedModel) -> str | None:
    name = type(model).__name__
    config = config_of(model)
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return (
            f"{name} takes no position_ids and counts the rows of a rank from 0; allowed: models "
            "that take position_ids"
        )
    if _POOLED.search(name):
        return _head_in_words(name)
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    has_mixers = any(map(is_served, model.modules()))
    known = _ATTENTION_LAYERS | _MIXING_LAYERS if has_mixers else _ATTENTION_LAYERS
    other = [kind for kind in dict.fromkeys(kinds) if kind not in known]
    if other:
        return (
            f"{name} has layers of type {other[0]!r}, which need a sequence's tokens side by side; "
            "allowed: layers that attend under plans, or compute by magi_attention.recurrent"
        )
    return _mixer_of(model, name) or _balance_of(model, name)


def _mixer_of(model: PreTrainedModel, name: str) -> str | None:
    served = [path for path, module in model.named_modules() if is_served(module)]
    for path, module in model.named_modules():
        kind = type(module).__name__
        is_mixer = isinstance(module, _MIXING) or _MIXERS.search(kind)
        is_mixer = is_mixer and not _attends(module)
        if is_mixer and any(_lies_in(path, one) for one in served):
            continue
        if _HOLDERS.search(kind) and any(_lies_in(one, path) for one in served):
            continue
        if is_mixer and not _OTHER_TOWERS.search(path):
            return (
                f"{name} has a {kind} at {path}, which computes over the rows of a rank; allowed: "
                "rows that see each other through attention, or through magi_attention.recurrent"
            )
    return None


def _attends(module: torch.nn.Module) -> bool:
    """Whether a module hands queries and keys to transformers' attention."""
    return any("ALL_ATTENTION_FUNCTIONS" in f.__code__.co_names for f in forwards_of(type(module)))


def group_heads(model: PreTrainedModel, num_groups: int) -> None:
    """Has all attention of a model come by so many groups of kv heads under plans. ValueError that
    names what cannot.
    """

    def changes(layer: Any, group: int) -> Changes:
        _kv_heads_of(layer)  # adapters may have come since
        for name in _PROJECTIONS:
            linear = getattr(layer, name)
            yield linear, part_of(linear, num_groups, group, int(name == "o_proj"))
        if getattr(layer, "sinks", None) is not None:
            yield layer, {"sinks": layer.sinks.chunk(num_groups)[group]}

    named = model.named_modules()
    layers = [one for path, one in named if _attends(one) and not _OTHER_TOWERS.search(path)]
    if not layers:
        raise cannot_split(model, "no attention")
    for layer, kv_heads in [(layer, _kv_heads_of(layer)) for layer in layers]:
        come_by_groups(layer, num_groups, kv_heads, changes, PLAN_KEYWORD)
    config_of(model).magi_head_groups = num_groups


def _kv_heads_of(layer: Any) -> int:
    """The kv heads of a layer; ValueError for one that is more than heads side by side."""
    q, k, v, o = (getattr(layer, name, None) for name in _PROJECTIONS)
    for name, linear in zip(_PROJECTIONS, (q, k, v, o)):
        if type(linear) is not torch.nn.Linear:
            raise cannot_split(layer, f"no torch.nn.Linear as {name}")
        if linear._forward_hooks or linear._forward_pre_hooks:
            raise cannot_split(layer, f"hooks of {name}")
    if q.out_features != o.in_features or k.out_features != v.out_features:
        raise cannot_split(layer, "outputs or values of other widths than its queries and keys")
    dim = getattr(layer, "head_dim", None)
    if dim is None:
        raise cannot_split(layer, "no head_dim")
    for name, child in layer.named_children():
        shapes = {tuple(weight.shape) for weight in child.parameters()}
        if name not in _PROJECTIONS and (name not in _NORMS or shapes != {(dim,)}):
            raise cannot_split(layer, f"{name} between its projections")
    for name, own in layer.named_parameters(recurse=False):
        if (name, *own.shape) != ("sinks", q.out_features // dim):
            raise cannot_split(layer, f"{name} of its own")
    for forward in forwards_of(type(layer)):
        for name in sorted(_COUNTS.intersection(forward.__code__.co_names)):
            raise cannot_split(layer, f"a forward that counts its {name}")
    return k.out_features // dim


def _lies_in(path: str, other: str) -> bool:
    return not other or path == other or path.startswith(f"{other}.")


def _balance_of(model: PreTrainedModel, name: str) -> str | None:
    """A loss over rows that a model's modules compute, and no option turns off."""
    shares = [share for option, share in vars(config_of(model)).items() if _SHARE.search(option)]
    if shares and not any(shares):
        return None
    for kind in {type(module): None for module in model.modules()}:
        for forward in forwards_of(kind):
            found = None if is_balanced(forward) else _OWN_BALANCE.search(_source_of(forward))
            if found is not None:
                return (
                    f"{name} computes {found[1]} over the rows of a rank ({kind.__name__}); "
                    "allowed: options that turn it off, or models whose losses are sums over tokens"
                )
    return None


def _source_of(forward: Any) -> str:
    try:
        return inspect.getsource(forward)
    except (OSError, TypeError):  # made while the program runs
        return ""


def other_task(model: PreTrainedModel) -> str | None:
    """Says what makes a model that plans reach no causal language model, as a sentence."""
    name, config = type(model).__name__, config_of(model)
    if not shifts_labels(model):
        return _head_in_words(name)
    if getattr(config, "is_encoder_decoder", False):
        return f"{name} has an encoder; allowed: causal language models"
    found = None if getattr(config, "is_causal", True) else "its configuration is_causal=False"
    for path, module in model.named_modules():
        if getattr(module, "is_causal", None) is False and not _OTHER_TOWERS.search(path):
            found = f"its {type(module).__name__} at {path}"
            break
    if found is None:
        return None
    return f"{name} attends in both directions by {found}; allowed: causal language models"


def _head_in_words(name: str) -> str:
    return (
        f"{name} has a head whose labels are not those of the next tokens; allowed: causal "
        "language models"
    )


def shifts_labels(model: PreTrainedModel) -> bool:
    """Whether the labels of a model's own loss are those of the next tokens."""
    return not _OTHER_HEADS.search(type(model).__name__)


def misfit_of_labels(model: PreTrainedModel) -> str | None:
    """Why a model would take shifted labels for others, as a sentence."""
    name = type(model).__name__
    if not shifts_labels(model):
        return _head_in_words(name)
    for forward in forwards_of(type(model)):
        source = _source_of(forward)
        if not source or "loss_function" in source or "shift_labels" in source:
            return None
        if "labels" in inspect.signature(forward).parameters and "super()" not in source:
            break
    else:
        return None
    return (
        f"{name} computes its loss without shift_labels, so that it would shift labels again and "
        "average over the rows of a rank; allowed: a loss of its logits, without labels"
    )


def first_position(model: torch.nn.Module) -> int:
    """The position id of a sequence's first row: models whose table of positions has a row for
    padding count from behind it.
    """
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and path.endswith("position_embeddings"):
            if module.padding_idx is not None:
                return module.padding_idx + 1
    return 0
