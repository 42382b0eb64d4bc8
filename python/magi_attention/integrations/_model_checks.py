# SPDX-License-Identifier: Apache-2.0
"""Which models of transformers a plan reaches whole, and why it does not reach others."""

from __future__ import annotations

import inspect
import re
import weakref

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from magi_attention.integrations._model_plans import config_of

# Types of layers whose rows see each other through attention alone.
_ATTENTION_LAYERS = {
    "attention", "full_attention", "sliding_attention", "chunked_attention", "dense", "sparse",
}  # fmt: skip
# Modules that mix rows in the order in which a rank holds them.
_MIXERS = re.compile(r"Mamba|Recurrent|LinearAttention|LightningAttention|DeltaNet|DeltaAttention|"
                     r"ShortConv|RgLru|Rwkv|LSTM|SSM|Indexer|Compressor")  # fmt: skip
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech")
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
    """What tokens peft's wrapper puts before a sequence, as a sentence."""
    adapter = getattr(wrapper, "active_peft_config", None)
    if not getattr(adapter, "is_prompt_learning", False):
        return None
    return (
        f"{type(adapter).__name__} puts {adapter.num_virtual_tokens} virtual tokens before a "
        "sequence, of which no plan knows; allowed: adapters without them, such as LoRA"
    )


def misfit(model: PreTrainedModel, attention: object) -> str | None:
    """What of the model a plan does not reach, as a sentence; None where it reaches everything."""
    # Asked each time: models are set to other attention and back, for generation say.
    implementation = getattr(config_of(model), "_attn_implementation", None)
    if ALL_ATTENTION_FUNCTIONS.get(implementation) is not attention:
        return (
            f"{type(model).__name__} attends through {implementation!r}, which no plan reaches; "
            "allowed: models that take attn_implementation='magi'"
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
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    other = [kind for kind in dict.fromkeys(kinds) if kind not in _ATTENTION_LAYERS]
    if other:
        return (
            f"{name} has layers of type {other[0]!r}, which take rows in the order of a rank; "
            "allowed: models whose layers all attend under plans"
        )
    return _mixer_of(model, name)


def _mixer_of(model: PreTrainedModel, name: str) -> str | None:
    for path, module in model.named_modules():
        kind = type(module).__name__
        is_mixer = isinstance(module, (torch.nn.Conv1d, torch.nn.RNNBase)) or _MIXERS.search(kind)
        if is_mixer and not _OTHER_TOWERS.search(path):
            return (
                f"{name} has a {kind} at {path}, which takes rows in the order of a rank; allowed: "
                "models whose rows see each other through attention alone"
            )
    return None


def first_position(model: torch.nn.Module) -> int:
    """The position id of a sequence's first row: models whose table of positions has a row for
    padding count from behind it.
    """
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and path.endswith("position_embeddings"):
            if module.padding_idx is not None:
                return module.padding_idx + 1
    return 0
