# SPDX-License-Identifier: Apache-2.0
"""Attention of a rank's rows to keys that are chosen in every call, within a plan's mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from magi_attention._native.attention import Options, is_latent
from magi_attention._native.handles import PlanHandle
from magi_attention._native.moved_rows import as_no_view, in_words
from magi_attention.common._arguments import as_bool, check_int
from magi_attention.common._block_ranges import Blocks, error_word_of_lists
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.common._lru import LruCache
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.env.general import is_sanity_check_enable
from magi_attention.functional._calls import telling
from magi_attention.functional._checks import check_params, check_qkv
from magi_attention.functional._operators import MAX_BLOCK, check_lists
from magi_attention.functional._rank_attention import RankAttention, check_rows, check_shapes
from magi_attention.functional._sparse import (
    SparseForwardMeta,
    attend_to_lists,
    check_latents,
    check_own_backend,
    check_word,
    has_values_of,
)
from magi_attention.functional.block_sparse import (
    MAX_BLOCK_SIZE,
    block_sparse_attn_func,
    check_mask,
)
from magi_attention.functional.needed_rows import NeededRows
from magi_attention.rows import Rows

_TABLES_KEPT = 4  # a plan's layers have one length, block and device
_OUTSIDE, _ABSENT = -2, -3  # entries outside the sequence; of absent blocks


class KeyBlocks(NamedTuple):
    """The blocks of the sequence that lie here whole. places: int32 [blocks + 3]: _OUTSIDE, -1, for
    each block of the sequence its number among those here, or _ABSENT, and _OUTSIDE at the end.
    ids: int64, the block of the sequence that each block here is; the number of blocks means none.
    rows: the rows of gather's result that hold these blocks, in sequence; None: all rows. has_all:
    whether no block is absent. Filled for causal masks alone: end: int64 [q_blocks], the first
    block of the sequence after each block of queries. runs: (begin, end, keys): own rows that
    follow each other in the sequence; the first `keys` of the keys here do not come after them.
    """

    places: torch.Tensor
    ids: torch.Tensor
    rows: torch.Tensor | None
    has_all: bool
    end: torch.Tensor | None = None
    runs: tuple[tuple[int, int, int], ...] = ()


class Chosen(NamedTuple):
    """Lists or a mask, or a function that returns them, for blocks of q_size queries and k_size
    keys. is_causal: no query sees a key after itself.
    """

    entries: torch.Tensor | Callable[[], torch.Tensor]
    is_mask: bool
    q_size: int
    k_size: int
    is_causal: bool

    @property
    def is_of_rows(self) -> bool:
        """Whether there is a list for each single query."""
        return not self.is_mask and self.q_size == 1


def chosen_of(lists, mask, sizes: tuple[int, int], is_causal: bool) -> Chosen:
    """Takes the lists or the mask; ValueError unless exactly one is given."""
    if (lists is None) == (mask is None):
        what = "neither of them is" if mask is None else "both are"
        raise ValueError(f"index_sparse_indices, block_mask: {what} given; allowed: one of them")
    entries = lists if mask is None else mask
    return Chosen(entries, mask is not None, *sizes, as_bool("is_causal", is_causal))


class _Found(NamedTuple):
    """entries: the chosen ones, numbered by the blocks here. is_missing: bool [q_blocks, heads_kv
    or 1], whether entries of a block of queries name absent blocks; None: none do. word: the error
    word; None: the one that attention gives.
    """

    entries: torch.Tensor
    is_missing: torch.Tensor | None
    word: torch.Tensor | None


class NeededKeys(NeededRows):
    """The keys of a plan on one rank, and where each block of the sequence lies among them."""

    def __init__(self, keys: PlanHandle, rank: int, rows: Rows) -> None:
        super().__init__(keys, rank, rows)
        self.total = rows.total_seqlen
        self.chunk_size = 0 if rows.is_alone else rows.chunk_size  # all sizes divide it
        self._found = LruCache(_TABLES_KEPT)

    def blocks(
        self, num_rows: int, size: int, device: torch.device, causal_size: int = 0
    ) -> KeyBlocks:
        """The blocks of `size` keys among the rows that gather returns for num_rows own rows.
        causal_size: the queries of a block under a causal mask; 0: the mask is not causal.
        """
        kind = num_rows, size, device, causal_size
        found = self._found.get(kind)
        if found is None:
            own = pad(self.own_ids, (0, num_rows - self.own_ids.shape[0]), value=-1)
            here = torch.cat((own, self.received_ids))
            found = _blocks_of(here, size, self.total, causal_size > 0)
            if causal_size:
                last = pad(own, (0, -num_rows % causal_size), value=-1).view(-1, causal_size)
                runs = _runs_of(self.own_ids, here if found.rows is None else here[found.rows])
                found = found._replace(end=last.amax(1) // size + 1, runs=runs)
            moved = (x.to(device) if isinstance(x, torch.Tensor) else x for x in found)
            found = self._found[kind] = KeyBlocks(*moved)
        return found


def _runs_of(own: torch.Tensor, keys: torch.Tensor) -> tuple[tuple[int, int, int], ...]:
    """KeyBlocks.runs; own, keys: their rows of the sequence, those of keys ascending."""
    ends = [*(own.diff() != 1).nonzero().flatten().add(1).tolist(), len(own)]
    counts = torch.searchsorted(keys, own[torch.tensor(ends, device="cpu") - 1], right=True)
    return tuple(zip([0, *ends], ends, counts.tolist()))


def _blocks_of(here: torch.Tensor, size: int, total: int, in_order: bool) -> KeyBlocks:
    """here: for each row here its row of the sequence; -1: none. Rows stay in place if each whole
    block begins at a multiple of its size, and a shorter last block ends the rows; with in_order,
    if they are whole blocks in ascending order.
    """
    num_rows, num_blocks = here.shape[0], -(-total // size)
    row_of = here.new_full((num_blocks * size,), -1)
    is_key = here >= 0
    row_of[here[is_key]] = is_key.nonzero().flatten()
    is_here = row_of >= 0
    is_here[total:] = True
    whole = is_here.view(num_blocks, size).all(1).nonzero().flatten()
    rows = row_of.view(num_blocks, size)[whole]
    first = rows[:, 0]
    in_place = first.unsqueeze(1) + torch.arange(size, device="cpu")
    is_in_place = (first % size == 0).all() and ((rows == in_place) | (rows < 0)).all()
    if is_in_place and (rows < 0).any():
        is_in_place = rows[-1].max() == num_rows - 1
    moved = rows[rows >= 0]
    if in_order:
        is_in_place = torch.equal(moved, torch.arange(num_rows, device="cpu"))
    if not is_in_place:
        return _blocks_of(here[moved], size, total, in_order)._replace(rows=moved)
    number = first // size
    places = torch.full((num_blocks + 3,), _ABSENT, dtype=torch.int32, device="cpu")
    places[0] = places[-1] = _OUTSIDE
    places[1] = -1
    places[whole + 2] = number.int()
    ids = here.new_full((-(-num_rows // size),), num_blocks)
    ids[number] = whole
    return KeyBlocks(places, ids, None, whole.shape[0] == num_blocks)


def attend_to_chosen_keys(
    needed: NeededKeys,
    attention: RankAttention,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    given: tuple,
    numbers: tuple[float | None, float],
) -> tuple[torch.Tensor, SparseForwardMeta]:
    """given: the arguments of chosen_of, by rows of the sequence; numbers: softmax_scale and
    softcap. See BoundPlan.calc_sparse_attn.
    """
    try:
        chosen = chosen_of(*given)
        is_late = callable(chosen.entries)
        q, k, v = check_qkv(*qkv, under_lists=chosen.is_of_rows)
        check_own_backend(attention.local_shape.backend)
        shape = attention.local_shape
        if k.shape[1] == 1 and has_values_of(k, v):  # latents have head dims of their own
            shape = shape._replace(heads_kv=1, head_dim=k.shape[2], head_dim_v=v.shape[2])
        check_rows("q", len(q), shape.rows, shape.num_valid)
        check_shapes((q, k, v), len(q), shape)
        scale, softcap = check_params(*numbers, q.dtype)
        chosen = _with_sizes(chosen, needed)
        blocks = needed.blocks(
            k.shape[0], chosen.k_size, k.device, chosen.is_causal * chosen.q_size
        )
        local = None if is_late else _local(chosen, q, k.shape[1], needed.total, blocks)
        if is_latent(q, v):
            check_latents(k, v)
        is_one = (is_latent(q, v) or not needed.has_short_rank) and has_values_of(k, v)
    except Exception as error:
        attention.refuse(error)
        raise
    agreed = Options(scale, softcap)
    sizes = {"sparse_k_block_size": chosen.k_size, "v is a view of k": is_one}
    call = attention.begin_gathered(q, v, agreed, **sizes)
    sent = (k,) if is_one else (k, v)
    if is_late:

        def choose() -> _Found:
            found = chosen._replace(entries=chosen.entries())
            return _local(found, q, k.shape[1], needed.total, blocks)

        found, local = _gather_beside(needed, sent, call, blocks.rows, choose)
    else:
        found = needed.gather(sent, call, blocks.rows)
    k, v = (found[0], found[0][..., : v.shape[2]]) if is_one else found
    numbers = *numbers, not attention.is_fast_backward
    with telling(needed.refuse):
        if chosen.is_of_rows:
            options = *numbers[:2], False, 0, numbers[2]
            out, meta = attend_to_lists(
                (q, k, v), local.entries, chosen.k_size, (None, "sh"), options
            )
        else:
            out, meta = _attend_to_blocks((q, k, v), chosen, local.entries, numbers, blocks.runs)
    word = meta.error_word if local.word is None else local.word
    if local.is_missing is None:
        return out, SparseForwardMeta(meta.lse, None, word)
    is_missing = local.is_missing.repeat_interleave(chosen.q_size, 0)[: q.shape[0]]
    is_missing = is_missing.repeat_interleave(q.shape[1] // is_missing.shape[1], 1)
    out = _Spoiled.apply(out, is_missing)
    return out, SparseForwardMeta(meta.lse.masked_fill(is_missing, float("nan")), None, word)


class _Spoiled(torch.autograd.Function):
    """out [rows, heads, dim] with NaN where is_missing [rows, heads], which gets no gradient."""

    @staticmethod
    def forward(ctx, out, is_missing):
        ctx.save_for_backward(is_missing)
        return as_no_view(_filled(out, is_missing, float("nan")))

    @staticmethod
    def backward(ctx, dout):
        refuse_second_derivative("attention")
        return _filled(dout, *ctx.saved_tensors, 0.0), None


def _filled(x: torch.Tensor, is_missing: torch.Tensor, value: float) -> torch.Tensor:
    (words,) = in_words(x.contiguous())
    filler = torch.full((8,), value, dtype=x.dtype, device="cpu").view(words.dtype)[0].item()
    return words.masked_fill(is_missing.unsqueeze(-1), filler).view(x.dtype)


def _attend_to_blocks(
    qkv: tuple, chosen: Chosen, entries: torch.Tensor, numbers: tuple, runs: tuple
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """numbers: softmax_scale, softcap, deterministic; runs: of KeyBlocks."""
    softmax_scale, softcap, deterministic = numbers
    attend = partial(
        block_sparse_attn_func, q_block_size=chosen.q_size, k_block_size=chosen.k_size,
        is_causal=chosen.is_causal, softmax_scale=softmax_scale, softcap=softcap,
        deterministic=deterministic,
    )  # fmt: skip
    if not chosen.is_causal:
        return attend(*qkv, **{"block_mask" if chosen.is_mask else "block_lists": entries})
    # The diagonal of a run ends at its last row and at the last key up to that row.
    q, k, v = qkv
    outs, lses = [], []
    for begin, end, num_keys in runs:
        blocks = slice(begin // chosen.q_size, -(-end // chosen.q_size))
        num_blocks = -(-num_keys // chosen.k_size)
        if chosen.is_mask:
            given = {"block_mask": entries[:, blocks, :num_blocks]}
        else:
            given = {"block_lists": entries[blocks]}
        out, meta = attend(q[begin:end], k[:num_keys], v[:num_keys], **given)
        outs.append(out)
        lses.append(meta.lse)
    num_padding = q.shape[0] - runs[-1][1]
    out = pad(torch.cat(outs), (0, 0, 0, 0, 0, num_padding))
    lse = pad(torch.cat(lses), (0, 0, 0, num_padding), value=-torch.inf)
    return out, AttnForwardMeta(lse, None)


def _gather_beside(needed: NeededKeys, kv: tuple, call: int, rows, choose: Callable):
    """Needed keys, and choose(), which on a GPU computes while the keys come."""
    try:
        if not kv[0].is_cuda:
            return needed.gather(kv, call, rows), choose()
        current = torch.cuda.current_stream(kv[0].device)
        beside = _beside(kv[0].device)
        beside.wait_stream(current)
        with torch.cuda.stream(beside):  # gradients go back on this stream, too
            found = needed.gather(kv, call, rows)
        local = choose()
    except Exception as error:
        needed.refuse(error)
        raise
    current.wait_stream(beside)
    for x in found:
        x.record_stream(current)
    return found, local


_beside = lru_cache(partial(torch.cuda.Stream, priority=-1))  # by device


def _with_sizes(chosen: Chosen, needed: NeededKeys) -> Chosen:
    """Cuts blocks of keys to the sequence. ValueError for sizes that are not allowed."""
    check_int("q_block_size", chosen.q_size, 1, MAX_BLOCK_SIZE)
    most = MAX_BLOCK if chosen.is_of_rows else MAX_BLOCK_SIZE
    check_int("sparse_k_block_size", chosen.k_size, 1, most)
    if chosen.is_of_rows and chosen.is_causal:
        raise ValueError("is_causal is True with lists of single queries; allowed: False")
    named = {"q_block_size": chosen.q_size}
    if chosen.is_causal:
        named["sparse_k_block_size"] = chosen.k_size
    for name, size in named.items():
        if needed.chunk_size % size:
            raise ValueError(
                f"{name} is {size}; allowed: divisors of {needed.chunk_size}, the plan's "
                "chunk_size, so that blocks of own rows are blocks of the sequence"
            )
    return chosen._replace(k_size=min(chosen.k_size, needed.total))


def _local(chosen: Chosen, q: torch.Tensor, heads_kv: int, total: int, blocks: KeyBlocks) -> _Found:
    """Numbers entries by the blocks here. In lists, entries of no block here become none; in a mask
    they are left out.
    """
    shape = Blocks(q.shape[0], total, chosen.q_size, chosen.k_size)
    if chosen.is_mask:
        mask = check_mask(chosen.entries, shape, heads_kv, q.device)
        if chosen.is_causal:
            mask = mask & (torch.arange(shape.num_k, device=q.device) < blocks.end.view(-1, 1))
        local = pad(mask, (0, 1)).index_select(2, blocks.ids)
        is_absent = mask & (blocks.places[2:-1] == _ABSENT)
        word = error_word_of_lists(is_absent.to(torch.int8), 1)
        check_word(word, "block_mask")
        return _Found(local, None if blocks.has_all else is_absent.any(2).T, word)
    of_queries = shape.num_q, heads_kv
    lists = check_lists(chosen.entries, chosen.k_size, of_queries, q.device)
    if chosen.is_causal:
        is_behind = (lists >= blocks.end.view(-1, 1, 1)) & (lists < shape.num_k)
        lists = lists.masked_fill(is_behind, -1)
    distinct = lists[:, :1] if lists.stride(1) == 0 else lists  # heads may share their lists
    entries = distinct.clamp(_OUTSIDE, shape.num_k).add_(-_OUTSIDE)
    local = blocks.places.index_select(0, entries.flatten()).view(distinct.shape)
    is_missing = None if blocks.has_all else (local == _ABSENT).any(2)
    local, word = local.expand(lists.shape), None
    if chosen.is_causal or is_sanity_check_enable():
        word = error_word_of_lists(local, blocks.ids.shape[0])
        check_word(word)
    return _Found(local, is_missing, word)
