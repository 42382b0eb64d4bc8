# SPDX-License-Identifier: Apache-2.0
"""Attention and its parts as functions of tensors: on one device (flex_flash_attn, block_sparse),
of one rank under a plan (dist_attn), rows that change place (dispatch, roll).

Each checks its arguments (_checks), finds the call that was prepared for tensors of that kind
(_calls) and runs it: eagerly (_eager), or as an operator where a compiler traces (_ops, and
dist_attn for a plan). What ranks must agree on is compared on the way (_rank_attention). Read
dist_attn.attend_by first.
"""

from magi_attention.functional._sparse import SparseForwardMeta
from magi_attention.functional.block_sparse import block_sparse_attn_func
from magi_attention.functional.dispatch import dispatch_func, undispatch_func
from magi_attention.functional.dist_attn import dist_attn_func
from magi_attention.functional.flex_flash_attn import ffa_fa4_func, flex_flash_attn_func
from magi_attention.functional.roll import roll_p2p as roll_func
from magi_attention.functional.roll import roll_simple_p2p as roll_simple_func
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
