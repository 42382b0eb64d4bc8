# SPDX-License-Identifier: Apache-2.0
"""Keys of magi_attention.api: what they are (key), the plans they stand for (manager), where both
are kept (groups), and how the arguments of a key function find theirs (lookup).

A key function goes through two caches: its arguments as given find the key (groups: seen), so that
a mask seen before is neither converted nor planned; the key finds its manager, as it
does in every later call. calc_attn finds the plan by a weak reference in the key.
"""

from magi_attention.compat.keys.groups import DistAttnRuntimeDict
from magi_attention.compat.keys.key import DistAttnRuntimeKey, init_dist_attn_runtime_key
from magi_attention.compat.keys.manager import (
    DistAttnRuntimeMgr,
    check_flag_comb,
    init_dist_attn_runtime_mgr,
    init_grpcoll_buffer_mgr,
)

__all__ = [
    "DistAttnRuntimeDict", "DistAttnRuntimeKey", "DistAttnRuntimeMgr", "check_flag_comb",
    "init_dist_attn_runtime_key", "init_dist_attn_runtime_mgr", "init_grpcoll_buffer_mgr",
]  # fmt: skip
