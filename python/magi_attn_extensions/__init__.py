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
from magi_attn_extensions import fa2_interface_with_sink as _fa2
from magi_attn_extensions import fa3_interface_with_sink as _fa3
from magi_attn_extensions import fa4_interface_with_sink as _fa4
from magi_attn_extensions.dsa_interface import dsa_attn_func
from magi_attn_extensions.fa2_interface_with_sink import *  # noqa: F403
from magi_attn_extensions.fa3_interface_with_sink import *  # noqa: F403
from magi_attn_extensions.fa4_interface_with_sink import *  # noqa: F403

__all__ = ["dsa_attn_func"]
__all__ += _fa2.__all__
__all__ += _fa3.__all__
__all__ += _fa4.__all__
