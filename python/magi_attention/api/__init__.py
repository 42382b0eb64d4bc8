# SPDX-License-Identifier: Apache-2.0
"""MagiAttention's functions of context-parallel attention, by runtime keys: magi_attn_interface has
them, functools what prepares masks and padding. Keys and their cache are in compat.keys.
"""

from magi_attention import config as _config
from magi_attention.api.functools import (
    apply_padding,
    compute_pad_size,
    full_attention_to_varlen_attention,
    infer_attn_mask_from_cu_seqlens,
    infer_attn_mask_from_sliding_window,
    infer_varlen_mask_from_batch,
    pad_at_dim,
    squash_batch_dim,
    unpad_at_dim,
)
from magi_attention.api.magi_attn_interface import (
    GeneralAttnMaskType,
    calc_attn,
    calc_sparse_attn,
    clear_cache,
    dispatch,
    get_most_recent_key,
    get_position_ids,
    magi_attn_flex_dispatch,
    magi_attn_flex_key,
    magi_attn_varlen_dispatch,
    magi_attn_varlen_key,
    make_flex_key_for_new_mask_after_dispatch,
    make_varlen_key_for_new_mask_after_dispatch,
    roll,
    roll_simple,
    undispatch,
)
from magi_attention.common.enum import AttnMaskType, AttnOverlapMode
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat.keys.groups import DistAttnRuntimeDictManager, dist_attn_runtime_dict_mgr
from magi_attention.compat.keys.key import DistAttnRuntimeKey
from magi_attention.config import *  # noqa: F403
from magi_attention.functional.flex_flash_attn import flex_flash_attn_func
from magi_attention.plan import Plan

__all__ = [
    "AttnForwardMeta", "AttnMaskType", "AttnOverlapMode", "AttnRanges",
    "DistAttnRuntimeDictManager", "DistAttnRuntimeKey", "GeneralAttnMaskType", "Plan",
    "apply_padding", "calc_attn", "calc_sparse_attn", "clear_cache", "compute_pad_size", "dispatch",
    "dist_attn_runtime_dict_mgr", "flex_flash_attn_func", "full_attention_to_varlen_attention",
    "get_most_recent_key", "get_position_ids", "infer_attn_mask_from_cu_seqlens",
    "infer_attn_mask_from_sliding_window", "infer_varlen_mask_from_batch",
    "magi_attn_flex_dispatch", "magi_attn_flex_key", "magi_attn_varlen_dispatch",
    "magi_attn_varlen_key", "make_flex_key_for_new_mask_after_dispatch",
    "make_varlen_key_for_new_mask_after_dispatch", "pad_at_dim", "roll", "roll_simple",
    "squash_batch_dim", "undispatch", "unpad_at_dim",
]  # fmt: skip
__all__ += _config.__all__
