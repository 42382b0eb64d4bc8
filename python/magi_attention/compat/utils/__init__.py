# SPDX-License-Identifier: Apache-2.0
"""The original's helpers that programs import: processes of torchrun, lists, dense masks, types,
seeds, ranges for profilers.
"""

from magi_attention.compat.utils import nvtx
from magi_attention.compat.utils.distributed import (
    clearup_dist_env,
    get_a2a_corr_factor,
    get_calc_cost_factor,
    get_comm_cost_factor,
    is_same_device_mesh,
    is_same_process_group,
    rprint_rank,
    setup_dist_env,
    write_rank,
)
from magi_attention.compat.utils.lists import (
    argmax,
    argmin,
    argsort,
    ceil_div,
    cu_seqlens2seqlens,
    flatten_nested_list,
    is_list_type_all,
    is_list_value_all,
    is_list_value_any,
    perm_idxs2unperm_idxs,
    seqlens2cu_seqlens,
    transpose_matrix,
    wrap_to_list,
)
from magi_attention.compat.utils.masks import (
    get_attn_mask_from_ffa_args,
    make_attn_mask_from_ffa_args,
    make_ffa_causal_mask,
)
from magi_attention.compat.utils.numbers import (
    is_fp_dtype_at_least,
    max_fp_dtype,
    set_random_seed,
    str2seed,
    sync_rng,
    to_higher_fp_dtype,
)

__all__ = [
    "argmax", "argmin", "argsort", "ceil_div", "clearup_dist_env", "cu_seqlens2seqlens",
    "flatten_nested_list", "get_a2a_corr_factor", "get_attn_mask_from_ffa_args",
    "get_calc_cost_factor", "get_comm_cost_factor", "is_fp_dtype_at_least", "is_list_type_all",
    "is_list_value_all", "is_list_value_any", "is_same_device_mesh", "is_same_process_group",
    "make_attn_mask_from_ffa_args", "make_ffa_causal_mask", "max_fp_dtype", "nvtx",
    "perm_idxs2unperm_idxs", "rprint_rank", "seqlens2cu_seqlens", "set_random_seed",
    "setup_dist_env", "str2seed", "sync_rng", "to_higher_fp_dtype", "transpose_matrix",
    "wrap_to_list", "write_rank",
]  # fmt: skip
