# SPDX-License-Identifier: Apache-2.0
"""A program of a user, which type checkers accept and which runs."""

import torch

from magi_attention.api import flex_flash_attn_func
from magi_attention.config import DispatchConfig, DistAttnConfig, MinHeapDispatchAlg

config = DistAttnConfig(dispatch_config=DispatchConfig(alg=MinHeapDispatchAlg()))
assert config.dispatch_config.alg == MinHeapDispatchAlg()

q, k, v = (torch.randn(64, heads, 32) for heads in (4, 2, 2))
ranges = torch.tensor([[0, 64]], dtype=torch.int32)
out, meta = flex_flash_attn_func(q, k, v, ranges, ranges, torch.tensor([1], dtype=torch.int32))
assert meta.lse is not None
print(list(out.shape), list(meta.lse.shape))
