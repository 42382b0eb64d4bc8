# SPDX-License-Identifier: Apache-2.0
"""Plans for a model, from its configuration and a mask."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch.distributed as dist

from magi_attention._environment import key_snapshot
from magi_attention.api import magi_attn_flex_key, make_flex_key_for_new_mask_after_dispatch
from magi_attention.comm.group import size_of
from magi_attention.common._arguments import check_int
from magi_attention.common._lru import LruCache
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.integrations._bound import AnyPlan
from magi_attention.integrations._mask_spec import AttnMaskSpec
from magi_attention.plan import BoundPlan, Plan

_MASKS_KEPT = 16
_alone = LruCache(_MASKS_KEPT)  # plans of processes without a group
INDEXED_LAYERS = "indexed_attention"  # to keys that an indexer chooses, of all before a query
# Types of layers that no plan is for: their rows meet in recurrences and convolutions, or nowhere.
UNATTENDED_LAYERS = {"linear_attention", "conv", "mamba", "recurrent", "moe", "mlp"}


class Heads(NamedTuple):
    """Heads of queries, and of keys and values; elements of one, and of one of values, None: as
    many.
    """

    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    head_dim_v: int | None = None

    def padded(self) -> Heads:
        """Those that kernels of all backends take, for tensors that get zeros: head dims are equal,
        except MLA's 192 and 128; where keys have as many heads, values may be wider.
        """
        widest = max(self.head_dim, self.head_dim_v or 0)
        if self.num_heads_q != self.num_heads_kv:
            return self._replace(head_dim=widest, head_dim_v=widest)
        return self if self[2:] == (192, 128) else self._replace(head_dim_v=widest)


def heads_of(model: Any) -> Heads:
    """The heads of a model with a config, of a config, or given as a tuple of three or four; where
    attention comes by groups those of one. ValueError for a config that does not say them.
    """
    if isinstance(model, tuple):
        model = model[:3] if model[3:] == (None,) else model
        given = zip(Heads._fields[: max(3, len(model))], model, strict=True)
        return Heads(*(check_int(name, value, 1) for name, value in given))
    config = config_of(model)
    num_heads_q = getattr(config, "num_attention_heads", None)
    if not isinstance(num_heads_q, int):
        raise ValueError(
            f"{type(config).__name__} has no num_attention_heads; allowed: a model or config that "
            "has it, or (num_heads_q, num_heads_kv, head_dim)"
        )
    num_heads_kv = getattr(config, "num_key_value_heads", None) or num_heads_q
    if getattr(config, "multi_query", False) is True:
        num_heads_kv = 1
    dims = _head_dim_of(config, num_heads_q), getattr(config, "v_head_dim", None)
    heads = (n // getattr(config, "magi_head_groups", 1) for n in (num_heads_q, num_heads_kv))
    return Heads(*heads, *dims).padded()


def config_of(model: Any) -> Any:
    """The config of the text model behind a model, its wrappers or its config."""
    while hasattr(model, "module"):  # DistributedDataParallel and others
        model = model.module
    config = getattr(model, "config", model)
    if not hasattr(config, "num_attention_heads") and hasattr(config, "text_config"):
        config = config.text_config
    return config


def _head_dim_of(config: Any, num_heads_q: int) -> int:
    """Returns the head dim of queries and keys. Latent attention has two parts."""
    parts = [getattr(config, name, None) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    if all(parts):
        return sum(parts)
    named = (getattr(config, name, None) for name in ("attention_head_dim", "head_dim"))
    return next(filter(None, named), None) or config.hidden_size // num_heads_q


def make_plan(
    spec: AttnMaskSpec,
    heads: Heads,
    cp_group: dist.ProcessGroup | None,
    config: DistAttnConfig = DistAttnConfig(),
    on: AnyPlan | None = None,
) -> AnyPlan:
    """A key of the group, or a bound plan of this process alone for None; of equal arguments the
    same one. One rank keeps the sequence as it is, several get equal numbers of rows. on: whose
    placement it keeps.
    """
    size, heads = size_of(cp_group), Heads(*heads)
    if spec.total_seqlen < size:  # rows that nobody sees, so that every rank has one
        spec = replace(spec, total_seqlen=size)
    if size == 1:
        config = replace(config, dispatch_config=replace(config.dispatch_config, uneven_shard=True))
    if cp_group is None:
        return _plan_alone(spec, heads, config)
    q_ranges, k_ranges, types = spec.ranges()
    if on is not None:
        return make_flex_key_for_new_mask_after_dispatch(
            q_ranges, k_ranges, types, on, **heads._asdict()
        )
    rows = spec.total_seqlen
    return magi_attn_flex_key(
        q_ranges, k_ranges, types, rows, rows, **heads._asdict(), cp_group_or_mesh=cp_group,
        dist_attn_config=config,
    )  # fmt: skip


def on_plan(spec: AttnMaskSpec, heads: Heads, on: BoundPlan) -> BoundPlan:
    """A bound plan of another mask over the rows of one."""
    cp_size = on.plan.cp_size
    return Plan.from_ranges(
        *spec.ranges(), spec.total_seqlen, cp_size=cp_size, **heads._asdict(), on=on.plan
    ).bind(on.cp_group)


def _plan_alone(spec: AttnMaskSpec, heads: Heads, config: DistAttnConfig) -> AnyPlan:
    """All placements of one rank are equal."""
    seen = spec.fingerprint(), heads, config, key_snapshot()
    bound = _alone.get(seen)
    if bound is None:
        bound = _alone[seen] = Plan.from_ranges(
            *spec.ranges(), spec.total_seqlen, cp_size=1, **heads._asdict(), config=config
        ).bind()
    return bound


def plans_of_documents(
    model: Any,
    seqlens: Sequence[int],
    cp_group: dist.ProcessGroup | None,
    config: DistAttnConfig = DistAttnConfig(),
) -> AnyPlan | dict[str, AnyPlan]:
    """The plan of packed causal documents for a model of transformers: of its sliding window where
    all layers have one, and a dict by type of layer where they differ, on one placement.
    """
    plans: dict[str, AnyPlan] = {}
    for layer_type, spec, heads in specs_of_layers(model, seqlens):
        first = next(iter(plans.values()), None)
        plans[layer_type] = make_plan(spec, heads, cp_group, config, first)
    return plans if len(plans) > 1 else next(iter(plans.values()))


def specs_of_layers(
    model: Any, seqlens: Sequence[int]
) -> Iterator[tuple[str, AttnMaskSpec, Heads]]:
    """Types of attention layers of a model, full_attention, which sees most, first, with their mask
    of packed causal documents and their heads.
    """
    text = config_of(model)
    kinds = dict.fromkeys(getattr(text, "layer_types", None) or ())
    types = [kind for kind in kinds if kind not in UNATTENDED_LAYERS]
    window = getattr(text, "sliding_window", None)
    if not types:
        types = ["sliding_attention" if _has_window_everywhere(text) else "full_attention"]
    for layer_type in sorted(types):
        size = _window_of(text, layer_type, window)
        spec = AttnMaskSpec.varlen(seqlens, window_size=(-1 if size is None else size - 1, 0))
        yield layer_type, spec, heads_of(_config_of_layers(text, layer_type))


def _config_of_layers(config: Any, layer_type: str) -> Any:
    """The config of the layers of a type, where configs say that layers differ in their heads."""
    of_layers, types = (
        getattr(config, "per_layer_config", None),
        getattr(config, "layer_types", None),
    )
    if of_layers is None or not types or layer_type not in types:
        return config
    return of_layers[list(types).index(layer_type)]


def _has_window_everywhere(config: Any) -> bool:
    window = getattr(config, "sliding_window", None)
    return (
        window is not None
        and getattr(config, "use_sliding_window", True)
        and _masks_windows(config)
    )


def _masks_windows(config: Any) -> bool:
    """Whether the models of a config ask for masks of windows; some have sliding_window and no use
    of it. Their sources say it, as transformers itself reads them for what models can do.
    """
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        source = inspect.getsource(importlib.import_module(name))
    except (ImportError, OSError, TypeError):  # a config without a module of models
        return True
    return "sliding_window_causal_mask" in source


def _window_of(config: Any, layer_type: str, window: int | None) -> int | None:
    """Rows that a layer of this type sees, the query's own among them; None: all before it."""
    if layer_type in ("full_attention", "attention", "hybrid", INDEXED_LAYERS):
        return None
    if layer_type in ("sliding_attention", "hybrid_sliding"):
        return window
    raise ValueError(
        f"{type(config).__name__}.layer_types holds {layer_type!r}; allowed: 'full_attention', "
        "'sliding_attention', or a dict of plans of one's own as magi_plan"
    )


def chunked(chunk_size: int | None) -> DistAttnConfig:
    """The default configuration with rows placed by at most chunk_size at a time."""
    return DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=chunk_size))
