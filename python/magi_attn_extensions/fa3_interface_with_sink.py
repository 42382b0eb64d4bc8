# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention 3 under the original's module name."""

from magi_attn_extensions._flash_attention import (
    fa3_func_with_sink,
    fa3_qkvpacked_func_with_sink,
    fa3_varlen_func_with_sink,
)

__all__ = ["fa3_func_with_sink", "fa3_qkvpacked_func_with_sink", "fa3_varlen_func_with_sink"]
