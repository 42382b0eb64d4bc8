# SPDX-License-Identifier: Apache-2.0
"""Attention of transformers' models to the keys that an indexer chooses for each query (DSA), under
plans: index keys of the rows that a rank needs travel once, and the model's own code scores them.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from magi_attention.integrations._bound import of_autocast
from magi_attention.integrations._model_calls import rows_of_batch
from magi_attention.masks import Mask
from magi_attention.plan import BoundPlan

# What a forward of an indexer takes, beside what only some do, and what it calls.
_TAKEN = {"hidden_states", "position_embeddings", "attention_mask", "position_ids", "cache"}
_CALLED = {"update_indexer", "masked_fill", "topk"}
_STRIP_SCORES = 1 << 26  # that an indexer computes at once, over its heads


class _Choice(NamedTuple):
    """What the queries of a rank may choose from: rows of the sequence, int64 [keys], ascending;
    where these are among needed rows; and needed rows that each query sees, as Mask.runs.
    """

    ids: torch.Tensor
    places: torch.Tensor
    offsets: torch.Tensor
    runs: torch.Tensor

    def visible(self, begin: int, end: int) -> torch.Tensor:
        """bool [end - begin, keys]: what these queries see."""
        offsets = self.offsets[begin : end + 1]
        runs = self.runs[offsets[0] : offsets[-1]]
        query = torch.repeat_interleave(offsets.diff())
        edges = runs.new_zeros((end - begin, len(self.ids) + 1), dtype=torch.int8)
        edges[query, runs[:, 0]] = 1
        edges[query, runs[:, 1]] -= 1
        return edges.cumsum(1, dtype=torch.int8)[:, self.places] > 0


_choices: weakref.WeakKeyDictionary[BoundPlan, _Choice] = weakref.WeakKeyDictionary()


def _choice_of(bound: BoundPlan, device: torch.device) -> _Choice:
    found = _choices.get(bound)
    if found is None or found.ids.device != device:
        ids, places = bound.needed_position_ids.sort(stable=True)
        offsets, runs = Mask(bound.needed_keys.mask(bound.local_rows)).runs
        found = _Choice(*(x.to(device) for x in (ids, places, offsets, runs.long())))
        _choices[bound] = found
    return found


class _IndexKeys:
    """Stands where an indexer looks for its cache: takes its keys, and gives it those of needed
    rows once there are any.
    """

    def __init__(self) -> None:
        self.own: torch.Tensor | None = None
        self.needed: torch.Tensor | None = None

    def update_indexer(self, keys: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """[1, rows, dim] -> [1, keys, dim]."""
        if self.needed is None:
            self.own = keys
            return keys[:, :1]
        return self.needed


class _FirstOfEqual(TorchFunctionMode):
    """topk that takes the first of equal scores, on all devices and with any number of keys: torch
    takes any, and indexers give many keys the score 0.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.topk, torch.Tensor.topk):
            count = args[1] if len(args) > 1 else kwargs["k"]
            values, indices = args[0].sort(dim=-1, descending=True, stable=True)
            return torch.return_types.topk((values[..., :count], indices[..., :count]))
        return func(*args, **(kwargs or {}))


def is_indexer(kind: type) -> bool:
    """Whether modules of a class choose keys for each query by scores of them all."""
    forward = inspect.unwrap(kind.forward)
    taken, called = inspect.signature(forward).parameters, forward.__code__.co_names
    return _TAKEN.issubset(taken) and _CALLED.issubset(called)


def choose(theirs: Callable, bound: BoundPlan, module, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns int32 [1, rows, n]: the rows of the sequence that an indexer chooses for each of this
    rank's, -1 in place of those that the plan hides. The arguments are those of its forward, by
    which it computes strip by strip; masks and caches are of no use here.
    """
    bind = inspect.signature(inspect.unwrap(type(module).forward)).bind
    given = bind(module, *args, **kwargs).arguments
    given.pop("self")
    rows, device = rows_of_batch(given["hidden_states"]).shape[0], given["hidden_states"].device
    choice, keys = _choice_of(bound, device), _IndexKeys()

    def indices_of(begin: int, end: int, visible: torch.Tensor) -> torch.Tensor:
        part = {name: _strip(value, begin, end) for name, value in given.items()}
        part.update(attention_mask=visible[None], cache=keys)
        return theirs(module, **part)[0].long()

    indices_of(0, rows, torch.ones(rows, 1, dtype=torch.bool, device=device))
    keys.needed = bound.gather_needed(rows_of_batch(keys.own))[choice.places].unsqueeze(0)
    strip = max(1, _STRIP_SCORES // (module.n_heads * len(choice.ids)))
    found = []
    with _FirstOfEqual():
        for begin in range(0, rows, strip):
            end = min(begin + strip, rows)
            visible = choice.visible(begin, end)
            indices = indices_of(begin, end, visible)
            seen = visible.gather(1, indices)
            found.append(torch.where(seen, choice.ids[indices], -1).int())
    return torch.cat(found).unsqueeze(0)


def _strip(value: Any, begin: int, end: int) -> Any:
    """Rows of an argument that has rows; position_embeddings are two."""
    if isinstance(value, tuple):
        return tuple(_strip(part, begin, end) for part in value)
    return value[:, begin:end] if isinstance(value, torch.Tensor) else value


def attend_to_chosen(
    bound: BoundPlan,
    qkv: tuple[torch.Tensor, ...],
    chosen: torch.Tensor,
    sink: torch.Tensor | None,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """Attention of this rank's rows to the keys that `choose` gives, [rows, heads, dim] each; sink
    [1, heads].
    """
    q, k, v = of_autocast(qkv)
    lists = rows_of_batch(chosen).unsqueeze(1).expand(-1, k.shape[1], -1)
    numbers = {"softmax_scale": scaling, "softcap": softcap}
    out, meta = bound.calc_sparse_attn(q, k, v, lists, **numbers)
    if sink is None:
        return out
    # A sink takes its share of the sum of exponentials, whose logarithm lse is.
    return (out * torch.sigmoid(meta.lse - sink).unsqueeze(-1)).to(out.dtype)


def without_others(mask: torch.Tensor, chosen: torch.Tensor, num_keys: int) -> torch.Tensor:
    """A model's mask, bool or added to scores, without the keys that its indexer has not chosen."""
    hidden = chosen.new_ones((*chosen.shape[:2], num_keys), dtype=torch.bool)
    hidden = hidden.scatter(-1, chosen.long(), False).unsqueeze(1)
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
