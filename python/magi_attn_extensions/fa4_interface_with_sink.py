# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention 4 under the original's module name."""

from magi_attn_extensions._flash_attention import fa4_func_with_sink, fa4_varlen_func_with_sink

__all__ = ["fa4_func_with_sink", "fa4_varlen_func_with_sink"]
