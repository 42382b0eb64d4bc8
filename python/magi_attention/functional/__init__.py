# SPDX-License-Identifier: Apache-2.0
"""Attention and its parts as functions of tensors, by what a caller does:

- under slices on one device: flex_flash_attn, with _slices;
- under blocks and lists of keys: block_sparse, with _sparse;
- over ranks: dist_attn, with _rank_attention, and sparse_dist_attn, with needed_rows, for chosen
  keys;
- rows that change place: rows;
- partial results put together: utils.

Each checks its arguments (_checks), finds the call that was prepared for tensors of that kind and
runs it (_calls), or runs it as an operator where a compiler traces (_operators, and dist_attn for a
plan). What ranks must agree on is compared on the way. Read dist_attn.attend_by first.
"""

from magi_attention.functional._sparse import SparseForwardMeta
from magi_attention.functional.block_sparse import block_sparse_attn_func
from magi_attention.functional.dist_attn import dist_attn_func
from magi_attention.functional.flex_flash_attn import ffa_fa4_func, flex_flash_attn_func
from magi_attention.functional.rows import dispatch_func, undispatch_func
from magi_attention.functional.rows import roll_p2p as roll_func
from magi_attention.functional.rows import roll_simple_p2p as roll_simple_func
from magi_attention.functional.utils import (
    correct_attn_lse,
    correct_attn_lse_with_sink,
    correct_attn_out,
    correct_attn_out_lse,
    correct_attn_out_lse_with_sink,
    correct_attn_out_with_sink,
)

__all__ = [
    "SparseForwardMeta", "block_sparse_attn_func", "correct_attn_lse", "correct_attn_lse_with_sink",
    "correct_attn_out", "correct_attn_out_lse", "correct_attn_out_lse_with_sink",
    "correct_attn_out_with_sink", "dispatch_func", "dist_attn_func", "ffa_fa4_func",
    "flex_flash_attn_func", "roll_func", "roll_simple_func", "undispatch_func",
]  # fmt: skip
