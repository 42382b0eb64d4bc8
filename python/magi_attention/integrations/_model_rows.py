# SPDX-License-Identifier: Apache-2.0
"""What models of transformers compute over all rows of a call besides attention and sums over
tokens, from the rows of all ranks: the balance of routers and rotary tables that depend on the
largest position.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import softmax
from transformers import PreTrainedModel

from magi_attention.comm.group import size_of
from magi_attention.integrations._bound import bound_of
from magi_attention.integrations._model_calls import calling_model, plan_of_callers
from magi_attention.integrations._model_recurrent import route

_BALANCE = "load_balancing_loss_func"
_ARGUMENTS = ["gate_logits", "num_experts", "top_k", "attention_mask"]


def over_ranks(model: PreTrainedModel) -> None:
    """Makes a model's calls with a plan compute over the rows of all ranks what its own code
    computes over those it is given.
    """
    route(model)
    for forward in filter(is_balanced, forwards_of(type(model))):
        theirs = forward.__globals__[_BALANCE]
        if not hasattr(theirs, "__wrapped__"):
            forward.__globals__[_BALANCE] = _balanced_over_ranks(theirs)
    for module in _tables_by_largest_position(model):
        if not _is_hooked(module):
            module.register_forward_pre_hook(_append_largest, with_kwargs=True)
            module.register_forward_hook(_drop_appended, with_kwargs=True)


def is_balanced(forward: Any) -> bool:
    """Whether over_ranks knows what a forward computes over rows."""
    theirs = forward.__globals__.get(_BALANCE)
    return theirs is not None and list(inspect.signature(theirs).parameters) == _ARGUMENTS


def forwards_of(kind: type) -> list[Any]:
    """The functions that are the forward of a class of modules and of its bases."""
    own = (vars(base).get("forward") for base in kind.__mro__ if base is not torch.nn.Module)
    found = (inspect.unwrap(forward) for forward in own if callable(forward))
    return [forward for forward in found if inspect.isfunction(forward)]


def _balanced_over_ranks(theirs):
    """A router's loss as this rank's share of that of all ranks: shares add up, as losses do."""

    @functools.wraps(theirs)
    def balance(gate_logits, num_experts=None, top_k=2, attention_mask=None):
        if plan_of_callers() is None or not isinstance(gate_logits, tuple):
            return theirs(gate_logits, num_experts, top_k, attention_mask)
        return _share_of_balance(gate_logits, num_experts, top_k)

    return balance


@torch.compiler.disable
def _share_of_balance(
    gate_logits: tuple[torch.Tensor, ...], num_experts: int, top_k: int
) -> torch.Tensor:
    """Returns how many rows of all ranks chose each expert, times this rank's probabilities of
    experts, by the squared rows of all layers. Rows of padding count nowhere.
    """
    bound = bound_of(calling_model()[1])
    rows, device = bound.rows.num_valid, gate_logits[0].device
    chosen = torch.zeros(num_experts, dtype=torch.float32, device=device)
    probability = torch.zeros_like(chosen)
    for logits in gate_logits:
        weights = softmax(logits.to(device).view(-1, num_experts)[:rows], dim=-1)
        experts = weights.topk(top_k, dim=-1).indices.flatten()
        chosen += torch.zeros_like(chosen).index_add_(0, experts, chosen.new_ones(len(experts)))
        probability = probability + weights.float().sum(0)
    if size_of(bound.cp_group) > 1:
        dist.all_reduce(chosen, group=bound.cp_group)
    total = bound.total_seqlen * len(gate_logits)
    return (chosen / total * (probability / total)).sum() * num_experts


def _tables_by_largest_position(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of a model whose rotary tables depend on the largest position they are given."""
    return [module for module in model.modules() if _depends_on_largest(module)]


def _depends_on_largest(module: torch.nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, dict) else (kinds,)
    return any(isinstance(k, str) and ("dynamic" in k or k == "longrope") for k in kinds)


def _is_hooked(module: torch.nn.Module) -> bool:
    return _append_largest in module._forward_pre_hooks.values()


def needs_whole_tables(model: torch.nn.Module) -> str | None:
    """Says what of a model that over_ranks has not seen is too late now, as a sentence."""
    if all(map(_is_hooked, _tables_by_largest_position(model))):
        return None
    return (
        f"{type(model).__name__} has rotary tables that depend on the largest position, of which a "
        "rank has its own; allowed: check_model(model) or shard(..., model=model) before the call"
    )


@torch.compiler.assume_constant_result
def _group_of_callers() -> dist.ProcessGroup | None:
    """The ranks of the plan that a model is being called with; None for one."""
    found = calling_model()
    group = None if found is None else bound_of(found[1]).cp_group
    return group if size_of(group) > 1 else None


def _append_largest(module, arguments: tuple, keywords: dict[str, Any]):
    """A row more, with the largest position of all ranks."""
    group = _group_of_callers()
    if group is None:
        return None
    is_keyword = "position_ids" in keywords
    positions = keywords["position_ids"] if is_keyword else arguments[1]
    largest = positions.max()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    largest = largest.expand(*positions.shape[:-1], 1)
    positions = torch.cat((positions, largest), -1)
    if is_keyword:
        return arguments, {**keywords, "position_ids": positions}
    return (arguments[0], positions, *arguments[2:]), keywords


def _drop_appended(module, arguments: tuple, keywords: dict[str, Any], tables):
    """Tables of the rows that were there before."""
    if _group_of_callers() is None:
        return tables
    if isinstance(tables, torch.Tensor):
        return tables[..., :-1, :]
    return tuple(table[..., :-1, :] for table in tables)
