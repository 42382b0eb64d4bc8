# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention 2 under the original's module name."""

from magi_attn_extensions._flash_attention import (
    fa2_func_with_sink,
    fa2_kvpacked_func_with_sink,
    fa2_qkvpacked_func_with_sink,
    fa2_varlen_func_with_sink,
    fa2_varlen_kvpacked_func_with_sink,
    fa2_varlen_qkvpacked_func_with_sink,
)

__all__ = [
    "fa2_func_with_sink", "fa2_kvpacked_func_with_sink", "fa2_qkvpacked_func_with_sink",
    "fa2_varlen_func_with_sink", "fa2_varlen_kvpacked_func_with_sink",
    "fa2_varlen_qkvpacked_func_with_sink",
]  # fmt: skip
