# SPDX-License-Identifier: Apache-2.0
"""Attention of transformers' models to the keys that an indexer chooses for each query (DSA), under
plans: index keys of the rows that a rank needs travel once, and the model's code scores them.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from magi_attention._native.attention import LATENT_DIMS
from magi_attention.integrations._bound import of_autocast
from magi_attention.integrations._model_calls import rows_of_batch
from magi_attention.masks import Mask
from magi_attention.plan import BoundPlan

# Arguments that the forward of every indexer takes, and functions that it calls.
_TAKEN = {"hidden_states", "position_embeddings", "attention_mask", "position_ids", "cache"}
_CALLED = {"update_indexer", "masked_fill", "topk"}
_STRIP_SCORES = 1 << 26  # computed at once, by an indexer for all its heads
# Head dims, beside those of latents, and the compute capability's major number of a GPU whose
# kernels take lists of keys.
_LISTED_DIMS, _LISTING = range(8, 129, 8), 9


class _Choice(NamedTuple):
    """The choices of the queries of a rank: rows of the sequence, int64 [keys], ascending;
    their places among needed rows; and the runs of needed rows that queries see, with the query of
    each run and, in host memory, the offsets of Mask.runs.
    """

    ids: torch.Tensor
    places: torch.Tensor
    runs: torch.Tensor
    queries: torch.Tensor
    offsets: list[int]

    def visible(self, begin: int, end: int) -> torch.Tensor:
        """bool [end - begin, keys]: what these queries see."""
        of_strip = slice(self.offsets[begin], self.offsets[end])
        runs, query = self.runs[of_strip], self.queries[of_strip] - begin
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
        queries = torch.repeat_interleave(offsets.diff())
        tensors = (x.to(device) for x in (ids, places, runs.long(), queries))
        found = _Choice(*tensors, offsets.tolist())
        _choices[bound] = found
    return found


class _IndexKeys:
    """Replaces an indexer's cache: keeps own keys first, then returns those of needed rows once
    they are there.
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
    """Makes topk take the first of equal scores, on all devices and for any number of keys: torch
    takes any, and indexers give many keys the score 0.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.topk, torch.Tensor.topk):
            count = args[1] if len(args) > 1 else kwargs["k"]
            values, indices = args[0].sort(dim=-1, descending=True, stable=True)
            return torch.return_types.topk((values[..., :count], indices[..., :count]))
        return func(*args, **(kwargs or {}))


def is_indexer(kind: type) -> bool:
    """Whether modules of a class score all keys of each query to choose some."""
    forward = inspect.unwrap(kind.forward)
    taken, called = inspect.signature(forward).parameters, forward.__code__.co_names
    return _TAKEN.issubset(taken) and _CALLED.issubset(called)


def choose(theirs: Callable, bound: BoundPlan, module, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns int32 [1, rows, n]: the rows of the sequence that an indexer chooses for each row of
    this rank, -1 in place of rows that the plan hides. The arguments are those of its forward,
    which runs strip by strip; it ignores masks and caches.
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
    """Rows [begin, end) of an argument that has rows; position_embeddings are two."""
    if isinstance(value, tuple):
        return tuple(_strip(part, begin, end) for part in value)
    return value[:, begin:end] if isinstance(value, torch.Tensor) else value


def attend_to_chosen(
    bound: BoundPlan, qkv: tuple[torch.Tensor, ...], chosen: torch.Tensor,
    sink: torch.Tensor | None, scaling: float | None, softcap: float,
) -> torch.Tensor:  # fmt: skip
    """Attention of this rank's rows to the keys that `choose` returns, [rows, heads, dim] each, or
    k and v latents for which takes_lists; sink [1, heads].
    """
    q, k, v = qkv = of_autocast(qkv)
    chosen = rows_of_batch(chosen)
    if takes_lists(bound, q, (q.shape[2], v.shape[2])):
        lists = chosen.unsqueeze(1).expand(-1, k.shape[1], -1)
        out, meta = bound.calc_sparse_attn(q, k, v, lists, softmax_scale=scaling, softcap=softcap)
        lse = meta.lse
    else:
        out, lse = _attend_by_scores(bound, qkv, chosen, (scaling or q.shape[2] ** -0.5, softcap))
    return with_sink(out, lse, sink)


def with_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """out of attention that knew no sink, [1, heads] or None: a sink takes its share of the sum of
    exponentials, whose logarithm lse is.
    """
    if sink is None:
        return out
    return (out * torch.sigmoid(lse - sink).unsqueeze(-1)).to(out.dtype)


def takes_lists(bound: BoundPlan, x: torch.Tensor, dims: tuple[int, int]) -> bool:
    """Whether kernels attend to lists of keys with head dims (of q and k, of v), in the type and on
    the device of x.
    """
    if bound.attention.local_shape.backend is not None:
        return False
    if not x.is_cuda:
        return True
    if torch.cuda.get_device_capability(x.device)[0] != _LISTING:
        return False
    if dims == LATENT_DIMS:
        return x.dtype == torch.bfloat16
    return x.itemsize == 2 and all(dim in _LISTED_DIMS for dim in dims)


def _attend_by_scores(
    bound: BoundPlan, qkv: tuple, chosen: torch.Tensor, numbers: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse by torch's own operators. They score all needed keys, one head and strip of rows
    at a time, and again in the backward. chosen [rows, n]; numbers: scaling, softcap.
    """
    q, k, v = qkv
    rows, heads = q.shape[:2]
    group = heads // k.shape[1]
    both = bound.gather_needed(torch.cat((k, v), 2))
    k, v = (x.unbind(1) for x in both.split((k.shape[2], v.shape[2]), 2))
    places = bound.needed_keys.blocks(rows, 1, q.device).places[2:]
    keys = places[chosen]  # -1 reads the last place, which is none
    keys = keys.masked_fill(keys < 0, len(both))
    strip = max(1, _STRIP_SCORES // max(1, len(both)))
    columns = []
    for head, of_head in enumerate(q.unbind(1)):
        own = k[head // group], v[head // group]
        strips = [
            checkpoint(
                _attend_strip, *pair, *own, *numbers, use_reentrant=False, preserve_rng_state=False
            )
            for pair in zip(of_head.split(strip), keys.split(strip))
        ]
        columns.append([torch.cat(parts) for parts in zip(*strips)])
    out, lse = (torch.stack(parts, 1) for parts in zip(*columns))
    return out, lse


def _attend_strip(q, keys, k, v, scaling: float, softcap: float):
    """out and lse of q [rows, dim] over k, v [n, ...]; keys [rows, entries]; key n is none."""
    seen = torch.zeros((len(q), len(k) + 1), dtype=torch.bool, device=q.device)
    seen = seen.scatter(1, keys.long(), True)[:, :-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.T).to(wide) * scaling
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    is_blind = ~seen.any(1)
    # Padding rows see nothing. Unmasked scores give them gradient 0; scores of -inf would give NaN.
    scores = scores.masked_fill(~(seen | is_blind.unsqueeze(1)), -torch.inf)
    lse = scores.logsumexp(1)
    weights = (scores - lse.unsqueeze(1)).exp() * seen
    return weights.to(v.dtype) @ v, lse.masked_fill(is_blind, -torch.inf)


def without_others(mask: torch.Tensor, chosen: torch.Tensor, num_keys: int) -> torch.Tensor:
    """A model's mask, bool or added to scores, without the keys that its indexer did not choose."""
    hidden = chosen.new_ones((*chosen.shape[:2], num_keys), dtype=torch.bool)
    hidden = hidden.scatter(-1, chosen.long(), False).unsqueeze(1)
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
