# SPDX-License-Identifier: Apache-2.0
"""Keys and managers under the original's module name; the code is in magi_attention.keys."""

from magi_attention.keys.flags import check_flag_comb
from magi_attention.keys.key import DistAttnRuntimeKey, init_dist_attn_runtime_key
from magi_attention.keys.manager import (
    DistAttnRuntimeMgr,
    init_dist_attn_runtime_mgr,
    init_grpcoll_buffer_mgr,
)
from magi_attention.keys.manager_dict import DistAttnRuntimeDict

__all__ = [
    "DistAttnRuntimeDict",
    "DistAttnRuntimeKey",
    "DistAttnRuntimeMgr",
    "check_flag_comb",
    "init_dist_attn_runtime_key",
    "init_dist_attn_runtime_mgr",
    "init_grpcoll_buffer_mgr",
]
