# SPDX-License-Identifier: Apache-2.0
"""A program of a user, which type checkers accept and which runs."""

import torch
from typing_extensions import assert_type

import magi_attention
import magi_attention.utils
from magi_attention import Plan, attention, masks
from magi_attention.api import flex_flash_attn_func
from magi_attention.config import DispatchConfig, DistAttnConfig, MinHeapDispatchAlg
from magi_attention.meta.solver import dispatch_solver as solver

config = DistAttnConfig(dispatch_config=DispatchConfig(alg=MinHeapDispatchAlg()))
assert config.dispatch_config.alg == MinHeapDispatchAlg()

q, k, v = (torch.randn(64, heads, 32) for heads in (4, 2, 2))
ranges = torch.tensor([[0, 64]], dtype=torch.int32)
out, meta = flex_flash_attn_func(q, k, v, ranges, ranges, torch.tensor([1], dtype=torch.int32))
assert meta.lse is not None

# Names that a table of magi_attention.compat provides.
assert_type(magi_attention.utils.seqlens2cu_seqlens([3]), list[int])
assert_type(solver.DispatchConfig(), DispatchConfig)

mask = masks.from_cu_seqlens([0, 24, 64])
assert_type(attention(q, k, v, mask), torch.Tensor)
assert_type(attention(q, k, v, mask, return_lse=True), tuple[torch.Tensor, torch.Tensor])
plan = Plan.from_mask(mask, cp_size=2, num_heads_q=4, num_heads_kv=2, head_dim=32, overlap=1)
assert_type(plan, magi_attention.Plan)
assert_type(plan.report.balance, float)
print(list(out.shape), list(meta.lse.shape))
