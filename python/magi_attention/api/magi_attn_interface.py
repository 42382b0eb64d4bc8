# SPDX-License-Identifier: Apache-2.0
"""MagiAttention's functions over runtime keys: a key names a plan that is bound to a process group,
and is kept in a cache. `magi_attention.plan.Plan` is the same without caches.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._deprecation import warn_deprecated
from magi_attention.api.functools import infer_attn_mask_from_cu_seqlens
from magi_attention.comm.group import rank_tuple
from magi_attention.common._arguments import check_kind
from magi_attention.common.enum import AttnMaskType
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat.keys.groups import (
    DistAttnRuntimeDictManager as DistAttnRuntimeDictManager,
)
from magi_attention.compat.keys.groups import dist_attn_runtime_dict_mgr, to_group
from magi_attention.compat.keys.key import DistAttnRuntimeKey
from magi_attention.compat.keys.lookup import find_or_make, runtime_of
from magi_attention.compat.keys.manager import check_self_attention
from magi_attention.config import DistAttnConfig
from magi_attention.functional._calls import is_eager
from magi_attention.functional._rank_attention import layout_of
from magi_attention.functional._sharded import are_sharded, attend_to_parts
from magi_attention.functional.dist_attn import attend

GeneralAttnMaskType: TypeAlias = str | AttnMaskType | Sequence[str | AttnMaskType]
GroupOrMesh: TypeAlias = dist.ProcessGroup | DeviceMesh

_P, _R = ParamSpec("_P"), TypeVar("_R")
_DEFAULT_CONFIG = DistAttnConfig()


def _with_older_names(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A key function that takes the names of older releases, too, with a DeprecationWarning."""
    name, parameters = function.__name__, list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if "cp_group" in kwargs:
            _warn_renamed("cp_group", "cp_group_or_mesh")
            kwargs["cp_group_or_mesh"] = kwargs.pop("cp_group")
        if "varlen" in name and kwargs.pop("max_seqlen_k", None) is not None:
            _warn_renamed("max_seqlen_k", None)
        given = dict(zip(parameters, args)) | kwargs
        if "cp_group_or_mesh" not in given:
            raise TypeError(f"{name}() misses cp_group_or_mesh")
        if given["cp_group_or_mesh"] is None:
            raise ValueError("cp_group_or_mesh is None; allowed: a ProcessGroup or a DeviceMesh")
        return function(*args, **kwargs)

    return call


@overload
def magi_attn_flex_key(
    q_ranges: AttnRanges, k_ranges: AttnRanges, attn_mask_type: GeneralAttnMaskType,
    total_seqlen_q: int, total_seqlen_k: int, num_heads_q: int, num_heads_kv: int, head_dim: int,
    pad_size: int, cp_group_or_mesh: GroupOrMesh, dist_attn_config: DistAttnConfig = ...,
    is_same_source: bool = ..., is_q_permutable: bool = ..., is_k_permutable: bool = ...,
    chunk_size: int | None = ..., head_dim_v: int | None = ...,
) -> DistAttnRuntimeKey: ...  # fmt: skip
@overload
def magi_attn_flex_key(
    q_ranges: AttnRanges, k_ranges: AttnRanges, attn_mask_type: GeneralAttnMaskType,
    total_seqlen_q: int, total_seqlen_k: int, num_heads_q: int, num_heads_kv: int, head_dim: int,
    *, cp_group_or_mesh: GroupOrMesh, dist_attn_config: DistAttnConfig = ...,
    is_same_source: bool = ..., is_q_permutable: bool = ..., is_k_permutable: bool = ...,
    chunk_size: int | None = ..., head_dim_v: int | None = ...,
) -> DistAttnRuntimeKey: ...  # fmt: skip
@_with_older_names
def magi_attn_flex_key(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: GeneralAttnMaskType,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: int = 0,
    cp_group_or_mesh: Any = ...,  # required: pad_size, before it, may be left out
    dist_attn_config: DistAttnConfig = _DEFAULT_CONFIG,
    is_same_source: bool = True,
    is_q_permutable: bool = True,
    is_k_permutable: bool = True,
    chunk_size: int | None = None,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:
    """Plans attention over the ranks of a group and gives a runtime key, which dispatch, calc_attn
    and undispatch take. The same arguments give the same key without planning. No communication.

    - q_ranges, k_ranges: the queries of q_ranges[i] see the keys of k_ranges[i], rows of the
      sequence, half-open.
    - attn_mask_type: one type, or one for each range: "full", "causal", "inv_causal", "bi_causal"
      or AttnMaskType.
    - total_seqlen_q, total_seqlen_k, equal: rows of the sequence, without padding.
    - num_heads_q, a multiple of num_heads_kv; head_dim: elements of a head,
      head_dim_v: of one of v, None: as many.
    - cp_group_or_mesh: a process group, a 1-D device mesh, or a 2-D one (between nodes, inside),
      whose rows are nodes where MAGI_ATTENTION_HIERARCHICAL_COMM is 1.
    - dist_attn_config: how rows are placed, what travels, how much overlaps.
    - pad_size, chunk_size: deprecated. The plan chooses the padding; chunk_size is that of
      DispatchConfig, ValueError where they differ.
    - is_same_source, is_q_permutable, is_k_permutable: True, which is self-attention; else
      NotImplementedError.

    The key's q_ranges, k_ranges, attn_mask_type and total_seqlen_q hold the padding too, pad_size
    rows that see no key. ValueError for ranges outside the sequence.
    """
    check_self_attention(is_same_source, is_q_permutable, is_k_permutable)
    if total_seqlen_q != total_seqlen_k:
        raise ValueError(
            f"total_seqlen_k is {total_seqlen_k}; allowed: {total_seqlen_q}, as total_seqlen_q"
        )
    _check_old_sizes(dist_attn_config, pad_size, chunk_size)
    heads = (num_heads_q, num_heads_kv, head_dim, head_dim_v)
    mask = q_ranges, k_ranges, attn_mask_type, total_seqlen_q
    return find_or_make(mask, heads, cp_group_or_mesh, dist_attn_config, chunk_size=chunk_size)


@overload
def magi_attn_varlen_key(
    cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, num_heads_q: int, num_heads_kv: int,
    head_dim: int, pad_size: int, cp_group_or_mesh: GroupOrMesh, causal: bool = ...,
    window_size: tuple[int, int] = ..., dist_attn_config: DistAttnConfig = ...,
    chunk_size: int | None = ..., head_dim_v: int | None = ...,
) -> DistAttnRuntimeKey: ...  # fmt: skip
@overload
def magi_attn_varlen_key(
    cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, num_heads_q: int, num_heads_kv: int,
    head_dim: int, *, cp_group_or_mesh: GroupOrMesh, causal: bool = ...,
    window_size: tuple[int, int] = ..., dist_attn_config: DistAttnConfig = ...,
    chunk_size: int | None = ..., head_dim_v: int | None = ...,
) -> DistAttnRuntimeKey: ...  # fmt: skip
@_with_older_names
def magi_attn_varlen_key(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: int = 0,
    cp_group_or_mesh: Any = ...,  # required: pad_size, before it, may be left out
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    dist_attn_config: DistAttnConfig = _DEFAULT_CONFIG,
    chunk_size: int | None = None,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:
    """A runtime key for packed documents, each of which sees itself alone.

    - cu_seqlens_q, cu_seqlens_k: where documents begin and end, int32 or int64 [documents + 1], in
      rows, from 0 on.
    - causal: queries see keys up to their own. window_size: how many keys to the (left, right) of
      its own a query sees, -1: all; not with causal. Diagonals end at the last query and key.

    The rest as magi_attn_flex_key. ValueError for bounds that do not grow or end apart, TypeError
    for bounds that are not integers.
    """
    mask = infer_attn_mask_from_cu_seqlens(cu_seqlens_q, cu_seqlens_k, causal, window_size)
    if mask[3] != mask[4]:
        raise ValueError(
            f"cu_seqlens_k ends at {mask[4]}; allowed: {mask[3]}, where cu_seqlens_q ends"
        )
    heads = num_heads_q, num_heads_kv, head_dim
    return magi_attn_flex_key(
        *mask, *heads, pad_size, cp_group_or_mesh, dist_attn_config, chunk_size=chunk_size,
        head_dim_v=head_dim_v,
    )  # fmt: skip


def magi_attn_flex_dispatch(
    x: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, DistAttnRuntimeKey]:
    """Deprecated: magi_attn_flex_key of the arguments after x, then dispatch. Returns (local x,
    key).
    """
    _warn_renamed("magi_attn_flex_dispatch", "magi_attn_flex_key and dispatch")
    with _called_as("magi_attn_flex_key", "magi_attn_flex_dispatch"):
        key = magi_attn_flex_key(*args, **kwargs)
    return dispatch(x, key), key


def magi_attn_varlen_dispatch(
    x: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, DistAttnRuntimeKey]:
    """Deprecated: magi_attn_varlen_key of the arguments after x, then dispatch. Returns (local x,
    key).
    """
    _warn_renamed("magi_attn_varlen_dispatch", "magi_attn_varlen_key and dispatch")
    with _called_as("magi_attn_varlen_key", "magi_attn_varlen_dispatch"):
        key = magi_attn_varlen_key(*args, **kwargs)
    return dispatch(x, key), key


def _with_x(key_function: Callable) -> inspect.Signature:
    """The signature of a key function with a tensor before its arguments."""
    x = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(key_function)
    return inspect.Signature([x, *given.parameters.values()])


magi_attn_flex_dispatch.__signature__ = _with_x(magi_attn_flex_key)
magi_attn_varlen_dispatch.__signature__ = _with_x(magi_attn_varlen_key)


def dispatch(x: torch.Tensor, key: DistAttnRuntimeKey, pad_value: float = 0.0) -> torch.Tensor:
    """x [total_seqlen, ...] of any type and device, the same on every rank -> this rank's rows
    [local rows, ...], padded; padding rows hold pad_value. No communication.

    Its gradient is that of the whole x, on every rank: backward is collective. ValueError for
    another number of rows and for a key that left the cache, TypeError where x is no tensor or key
    no key.
    """
    return runtime_of(key).dispatch_qo(x, pad_value)


def undispatch(
    x: torch.Tensor, key: DistAttnRuntimeKey, is_partial_grad: bool = False
) -> torch.Tensor:
    """This rank's rows x [local rows, ...] -> [total_seqlen, ...] without padding, on every rank.
    Collective.

    is_partial_grad: upstream gradients of the ranks are parts of a sum, which backward adds up,
    collective; else every rank holds the whole one and keeps its own rows of it. ValueError for
    another number of rows and for a key that left the cache, CommError (a RuntimeError) where
    communication fails.
    """
    return runtime_of(key).undispatch_qo(x, is_partial_grad)


def roll(x: torch.Tensor, shift: int, dim: int, key: DistAttnRuntimeKey) -> torch.Tensor:
    """torch.roll by `shift` rows in the order of the sequence, which is axis `dim` of x; every rank
    holds its local rows. Rows wrap around the sequence without padding, which stays; only rows that
    change rank are sent. Collective, forward and backward. Errors as undispatch.
    """
    return runtime_of(key).roll(x, shift, dim)


roll_simple = roll


def calc_attn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key: DistAttnRuntimeKey,
    sink: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_max_logits: bool = False,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """Attention of this rank's queries to the keys of all ranks, under the mask of key. Collective.

    - q [rows, heads_q, dim]; k, v [rows, heads_kv, dim]: this rank's rows, as dispatch gives them,
      or DTensors of them, Shard(0) over the key's ranks; the results are placed as they are.
    - sink: float32 [sinks, heads_q] or [rows, sinks, heads_q], 1 to 8 sinks; None: none.
    - softmax_scale, softcap, return_max_logits: as in flex_flash_attn_func.

    Returns out like q and a meta with lse [rows, heads_q] float32 (float64 for float64 inputs) and
    max_logits [heads_q] over all ranks, or None. Gradients come through out and lse.

    - ValueError: shapes, devices and strides that do not fit the key; a key that left the cache.
    - TypeError: types of elements.
    - RuntimeError: a device without kernels; a destroyed group.
    - CommError (a RuntimeError): communication fails, or ranks hold different plans; at the first
      call with a key also where they differ in type, scale, softcap, sink, return_max_logits or
      environment, or where one rank refuses its arguments. All ranks get it.
    """
    if not isinstance(key, DistAttnRuntimeKey):
        raise TypeError(f"key is a {type(key).__name__}; allowed: a DistAttnRuntimeKey")
    if not key._number:
        key.name_plan(runtime_of(key).bound)
    layout = "sh" if sink is None else layout_of(sink)
    options = (sink, layout, softmax_scale, softcap, return_max_logits)
    if is_eager(q, k, v):
        attention = key._attention()
        if attention is None:  # it left the cache; an equal key may have been made since
            bound = runtime_of(key).bound
            key.name_plan(bound)
            attention = bound.attention
        dist_attn_runtime_dict_mgr.note_use(key)
        return attention.attend(q, k, v, options)
    if are_sharded(q, k, v):
        again = functools.partial(
            calc_attn, key=key, sink=sink, softmax_scale=softmax_scale, softcap=softcap,
            return_max_logits=return_max_logits,
        )  # fmt: skip
        return attend_to_parts((q, k, v), key._number, rank_tuple(key.cp_group), again)
    return attend(key._number, key._local_shape, key.precision, (q, k, v), options)


def calc_sparse_attn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key: DistAttnRuntimeKey,
    index_sparse_indices: torch.Tensor | Callable[[], torch.Tensor] | None = None,
    sparse_k_block_size: int = 1,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    *,
    block_mask: torch.Tensor | Callable[[], torch.Tensor] | None = None,
    q_block_size: int = 1,
    is_causal: bool = False,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """BoundPlan.calc_sparse_attn by a key: attention of this rank's rows to keys that are chosen in
    every call, within the key's mask. MagiAttention has no such function.
    """
    return runtime_of(key).bound.calc_sparse_attn(
        q, k, v, index_sparse_indices, sparse_k_block_size, softmax_scale, softcap,
        block_mask=block_mask, q_block_size=q_block_size, is_causal=is_causal,
    )  # fmt: skip


def get_position_ids(key: DistAttnRuntimeKey) -> torch.Tensor:
    """int64 [local rows]: row of the sequence of every local row; padding counts as the last row.
    In host memory, on the current GPU for a group that moves nothing else (nccl). Rows after the
    last one with keys count as that one. ValueError for a key that left the cache.
    """
    return runtime_of(key).get_position_ids()


def get_most_recent_key(cp_group: dist.ProcessGroup) -> DistAttnRuntimeKey:
    """The key of this group that was made last, or used since by dispatch, calc_attn or another
    function here. ValueError where there is none.
    """
    key = dist_attn_runtime_dict_mgr.get_most_recent_key(to_group(cp_group, "cp_group")[0])
    if key is None:
        raise ValueError("cp_group has no key; allowed: a group that a key was made for")
    return key


def clear_cache(cp_group: dist.ProcessGroup | None = None) -> None:
    """Forgets the keys of one group, or of all; calls with them raise ValueError from then on."""
    dist_attn_runtime_dict_mgr.clear(cp_group)


def make_flex_key_for_new_mask_after_dispatch(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: GeneralAttnMaskType,
    key_for_dispatch: DistAttnRuntimeKey,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:
    """A key for another mask over rows that stay where key_for_dispatch placed them; heads and
    head dims are that key's where they are None, but head_dim_v is a given head_dim. Of
    dist_attn_config the dispatch part is not read: it is that of key_for_dispatch. No
    communication. Errors as magi_attn_flex_key; ValueError for a key_for_dispatch that left the
    cache.
    """
    runtime_of(key_for_dispatch, "key_for_dispatch")
    old = key_for_dispatch
    config = old.dist_attn_config
    if dist_attn_config is not None:
        check_kind("dist_attn_config", dist_attn_config, DistAttnConfig, "DistAttnConfig, or None")
        config = replace(dist_attn_config, dispatch_config=config.dispatch_config)
    heads = (
        old.num_heads_q if num_heads_q is None else num_heads_q,
        old.num_heads_kv if num_heads_kv is None else num_heads_kv,
        old.head_dim if head_dim is None else head_dim,
        old.head_dim_v if head_dim is None and head_dim_v is None else head_dim_v,
    )
    mask = q_ranges, k_ranges, attn_mask_type, old.total_seqlen_q - old.pad_size
    return find_or_make(mask, heads, old.cp_mesh or old.cp_group, config, old.placed_by or old)


def make_varlen_key_for_new_mask_after_dispatch(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    key_for_dispatch: DistAttnRuntimeKey,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """make_flex_key_for_new_mask_after_dispatch for packed documents: cu_seqlens_q, cu_seqlens_k,
    causal and window_size as in magi_attn_varlen_key. ValueError for documents that do not end with
    the sequence of key_for_dispatch.
    """
    runtime_of(key_for_dispatch, "key_for_dispatch")
    q_ranges, k_ranges, types, rows_q, rows_k = infer_attn_mask_from_cu_seqlens(
        cu_seqlens_q, cu_seqlens_k, causal, window_size
    )
    total_seqlen = key_for_dispatch.total_seqlen_q - key_for_dispatch.pad_size
    for name, rows in (("cu_seqlens_q", rows_q), ("cu_seqlens_k", rows_k)):
        if rows != total_seqlen:
            raise ValueError(
                f"{name} ends at {rows}; allowed: {total_seqlen}, the sequence of key_for_dispatch"
            )
    return make_flex_key_for_new_mask_after_dispatch(
        q_ranges, k_ranges, types, key_for_dispatch, dist_attn_config=dist_attn_config
    )


def _check_old_sizes(config: DistAttnConfig, pad_size: int, chunk_size: int | None) -> None:
    if pad_size:
        _warn_renamed("pad_size", None)
    if chunk_size is None:
        return
    _warn_renamed("chunk_size", "DispatchConfig(chunk_size=...)")
    configured = config.dispatch_config.chunk_size
    if configured is not None and configured != chunk_size:
        raise ValueError(
            f"chunk_size is {chunk_size}; allowed: {configured}, that of DispatchConfig, or None"
        )


@contextmanager
def _called_as(inner: str, outer: str) -> Iterator[None]:
    """An error about a call of the function `inner` is one about `outer`."""
    try:
        yield
    except TypeError as error:
        text = str(error)
        if not text.startswith(f"{inner}()"):
            raise
        raise TypeError(outer + text[len(inner) :]) from None


def _warn_renamed(old: str, new: str | None) -> None:
    advice = f"use {new}" if new else "it has no effect"
    warn_deprecated(f"{old} is deprecated; {advice}")
