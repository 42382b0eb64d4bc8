# SPDX-License-Identifier: Apache-2.0
"""Attention with sinks by the arguments of FlashAttention 2, 3 and 4, and attention to keys that an
indexer chose: the original's functions.

sink: logits that add to the denominator of a row's softmax only, float32 [sinks, heads_q]
(sink_layout "sh") or one for each row ("ssh"), with a gradient. Where FlashAttention of the
function's release is installed and serves the GPU, out and lse are its own, corrected with the
sink; lse has a gradient with release 4 alone. Else attention is that of
magi_attention.api.flex_flash_attn_func, on the CPU and on GPUs. What neither can do is
NotImplementedError by the argument's name.
"""

from magi_attention import __version__
from magi_attn_extensions.dsa_interface import dsa_attn_func
from magi_attn_extensions.fa2_interface_with_sink import (
    fa2_func_with_sink,
    fa2_kvpacked_func_with_sink,
    fa2_qkvpacked_func_with_sink,
    fa2_varlen_func_with_sink,
    fa2_varlen_kvpacked_func_with_sink,
    fa2_varlen_qkvpacked_func_with_sink,
)
from magi_attn_extensions.fa3_interface_with_sink import (
    fa3_func_with_sink,
    fa3_qkvpacked_func_with_sink,
    fa3_varlen_func_with_sink,
)
from magi_attn_extensions.fa4_interface_with_sink import (
    fa4_func_with_sink,
    fa4_varlen_func_with_sink,
)

__all__ = [
    "dsa_attn_func", "fa2_func_with_sink", "fa2_kvpacked_func_with_sink",
    "fa2_qkvpacked_func_with_sink", "fa2_varlen_func_with_sink",
    "fa2_varlen_kvpacked_func_with_sink", "fa2_varlen_qkvpacked_func_with_sink",
    "fa3_func_with_sink", "fa3_qkvpacked_func_with_sink", "fa3_varlen_func_with_sink",
    "fa4_func_with_sink", "fa4_varlen_func_with_sink",
]  # fmt: skip
