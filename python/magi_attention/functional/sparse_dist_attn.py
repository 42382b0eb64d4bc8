# SPDX-License-Identifier: Apache-2.0
"""Attention of a rank's rows to keys that are chosen in every call, inside of a plan's mask."""

from __future__ import annotations

import torch

from magi_attention._native.attention import Options
from magi_attention._native.handles import PlanHandle
from magi_attention.common._lru import LruCache
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.functional._checks import check_params, check_qkv
from magi_attention.functional._operators import check_lists
from magi_attention.functional._rank_attention import LocalShape, RankAttention
from magi_attention.functional._sparse import (
    SparseForwardMeta,
    attend_to_lists,
    check_own_backend,
    check_word,
)
from magi_attention.functional.needed_rows import NeededRows
from magi_attention.rows import Rows

_TABLES_KEPT = 4  # a plan's layers have one length, block and device


class NeededKeys(NeededRows):
    """The keys of a plan on one rank, and where each row of the sequence is among them."""

    def __init__(self, keys: PlanHandle, rank: int, rows: Rows) -> None:
        super().__init__(keys, rank, rows)
        self.total = rows.total_seqlen
        self._places = LruCache(_TABLES_KEPT)

    def places(self, num_rows: int, device: torch.device) -> torch.Tensor:
        """int32 [total + 1]: the row of gather's result, of num_rows own rows, that holds each row
        of the sequence; -1: it is not here.
        """
        table = self._places.get((num_rows, device))
        if table is None:
            table = torch.full((self.total + 1,), -1, dtype=torch.int32, device="cpu")
            for first, ids in ((0, self.own_ids), (num_rows, self.received_ids)):
                last = first + ids.shape[0]
                table[ids] = torch.arange(first, last, dtype=torch.int32, device="cpu")
            table = self._places[num_rows, device] = table.to(device)
        return table

    def blocks(
        self, num_rows: int, block: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Which blocks of the sequence are here as a whole: int32 [blocks + 1], the number of each
        among those that are, -1: it is not here; and the rows of gather's result that hold them,
        one behind the other, None: all of these, in their order.
        """
        places = self.places(num_rows, device)
        if block == 1:
            return places, None
        found = self._places.get((num_rows, block, device))
        if found is None:
            num_blocks = -(-self.total // block)
            rows = torch.full((num_blocks * block,), -1, dtype=torch.int32, device=device)
            rows[: self.total] = places[: self.total]
            is_here = rows >= 0
            is_here[self.total :] = True
            whole = is_here.view(num_blocks, block).all(1)
            table = torch.full((num_blocks + 1,), -1, dtype=torch.int32, device=device)
            table[:-1][whole] = torch.arange(int(whole.sum()), dtype=torch.int32, device=device)
            rows = rows.view(num_blocks, block)[whole].flatten()
            found = self._places[num_rows, block, device] = table, rows[rows >= 0]
        return found


def attend_to_chosen_keys(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    indices: torch.Tensor,
    block: int,
    needed: NeededKeys,
    attention: RankAttention,
    numbers: tuple[float | None, float],
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """indices int32 [rows of q, heads_kv, n]: rows of the sequence, or blocks of it; numbers:
    softmax_scale and softcap; attention: of the plan. See BoundPlan.calc_sparse_attn.
    """
    try:
        q, k, v = check_qkv(*qkv)
        check_own_backend(attention.local_shape.backend)
        _check_shapes((q, k, v), attention.local_shape)
        _refuse_gpu(q)
        indices = check_lists(indices, block, (q.shape[0], k.shape[1]), q.device)
        scale, softcap = check_params(*numbers, q.dtype)
        block = min(block, needed.total)
        table, rows = needed.blocks(k.shape[0], block, k.device)
        local, is_missing, word = _local_lists(indices, table)
        check_word(word)
    except Exception as error:
        attention.refuse(error)
        raise
    call = attention.begin_gathered(q, v, Options(scale, softcap), sparse_k_block_size=block)
    k, v = needed.gather((k, v), call)
    if rows is not None:
        # A rank that holds no block as a whole still has keys, which no list names.
        rows = rows if rows.shape[0] else rows.new_zeros(min(1, k.shape[0]))
        k, v = k.index_select(0, rows), v.index_select(0, rows)
    out, meta = attend_to_lists(
        (q, k, v), local, block, (None, "sh"), (*numbers, False, 0, False), needed.refuse
    )
    group = q.shape[1] // k.shape[1]
    is_missing = is_missing.repeat_interleave(group, 1)
    out = out.masked_fill(is_missing.unsqueeze(-1), float("nan"))
    return out, SparseForwardMeta(meta.lse.masked_fill(is_missing, float("nan")), None, word)


def _refuse_gpu(q: torch.Tensor) -> None:
    """NotImplementedError for tensors that the ranks would have to fetch between GPUs."""
    if q.device.type != "cpu":
        raise NotImplementedError(
            f"index_sparse_indices is on {q.device}; allowed over ranks: cpu, as keys that are "
            "chosen when attention is called are fetched in host memory alone"
        )


def _check_shapes(qkv: tuple[torch.Tensor, ...], local_shape: LocalShape) -> None:
    """ValueError unless the tensors are those of the plan's rank, with or without its padding."""
    _, rows, num_valid, heads_q, heads_kv, dim, dim_v, _ = local_shape
    found = qkv[0].shape[0]
    if found not in (rows, num_valid):
        allowed = f"{rows}" if rows == num_valid else f"{rows}, or {num_valid} without padding"
        raise ValueError(f"q has {found} rows; allowed: {allowed}, the plan's of this rank")
    wanted = (found, heads_q, dim), (found, heads_kv, dim), (found, heads_kv, dim_v)
    for name, tensor, shape in zip("qkv", qkv, wanted):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}.shape is {list(tensor.shape)}; allowed: {list(shape)}")


def _local_lists(
    indices: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lists of the blocks that are here (NeededKeys.blocks); [rows, heads_kv]: whether a list asks
    for others; the error word of these entries and of those outside the sequence.
    """
    outside = table.shape[0] - 1
    is_block = (indices >= 0) & (indices < outside)
    local = table[torch.where(is_block, indices, outside)]  # the last place is -1
    is_missing = is_block & (local < 0)
    is_bad = is_missing | (~is_block & (indices != -1))
    found = is_bad.flatten().nonzero().flatten()
    first_bad = found[:1] if found.shape[0] else found.new_full((1,), -1)
    word = torch.cat((found.new_full((1,), found.shape[0]), first_bad))
    return local, is_missing.any(-1), word
