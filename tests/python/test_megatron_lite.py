# SPDX-License-Identifier: Apache-2.0
"""The calls that Megatron Lite makes for attention_backend_override="magi": a key for each batch of
causal documents, tensors dispatched before the projections, core attention of plain tensors.
"""

import pytest
import torch
import torch.distributed as dist

import dense


def make_key(bounds, heads, group, chunk_size=None):
    """Overlap is left to the planner; where the sequence would be padded a second time, chunks are
    lowered to a divisor of the rows of a rank.
    """
    from magi_attention.api import magi_attn_varlen_key
    from magi_attention.common.enum import AttnOverlapMode
    from magi_attention.config import DispatchConfig, DistAttnConfig, OverlapConfig

    num_heads_q, num_heads_kv, head_dim = heads

    def build(chunk_size):
        return magi_attn_varlen_key(
            cu_seqlens_q=bounds,
            cu_seqlens_k=bounds,
            num_heads_q=num_heads_q,
            num_heads_kv=num_heads_kv,
            head_dim=head_dim,
            pad_size=0,
            cp_group_or_mesh=group,
            causal=True,
            dist_attn_config=DistAttnConfig(
                dispatch_config=DispatchConfig(chunk_size=chunk_size),
                overlap_config=OverlapConfig(mode=AttnOverlapMode.DYNAMIC, degree=None),
            ),
        )

    key = build(chunk_size)
    if int(key.pad_size) == 0:
        return key
    of_rank = int(bounds[-1]) // dist.get_world_size(group)
    lower = min(int(key.chunk_size), of_rank)
    while of_rank % lower:
        lower -= 1
    key = build(lower)
    assert key.pad_size == 0
    return key


def step(group, lengths, chunk_size, dtype) -> None:
    from magi_attention.api import calc_attn, dispatch, undispatch

    size = dist.get_world_size(group)
    lengths = [-(-n // (2 * size)) * 2 * size for n in lengths]  # as Megatron pads documents
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    rows, heads = int(bounds[-1]), (4, 2, 16)
    key = make_key(bounds, heads, group, chunk_size)
    assert (key.num_heads_q, key.num_heads_kv) == heads[:2]
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(rows, 64, generator=generator).to(dtype)
    weights = torch.randn(8 * 16, 64, generator=generator).to(dtype).div(8).requires_grad_()
    local = dispatch(x, key, pad_value=0.0)
    labels = dispatch(torch.arange(rows), key, pad_value=-100)
    assert local.shape[0] == rows // size and (labels >= 0).all()
    q, k, v = (local @ weights.T).view(-1, 8, 16).split((4, 2, 2), 1)
    out, _ = calc_attn(q, k, v, key, softmax_scale=16**-0.5)
    whole = undispatch(out, key)
    out.float().square().sum().backward()
    found = weights.grad.float()
    dist.all_reduce(found, group=group)

    wide = weights.detach().double().requires_grad_()
    projected = (x.double() @ wide.T).view(-1, 8, 16).split((4, 2, 2), 1)
    ends = list(zip(bounds[:-1].tolist(), bounds[1:].tolist()))
    mask = dense.Mask(ends, ends, [1] * len(ends), rows, rows)
    wanted = dense.attention(*projected, mask, scale=16**-0.5)[0]
    wanted.square().sum().backward()
    allowed = 2e-2 if dtype == torch.bfloat16 else 1e-4
    assert (whole - wanted).abs().max() < allowed * wanted.abs().max()
    assert (found - wide.grad).abs().max() < allowed * wide.grad.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [(3, 5), (100, 37, 260), (383,)], ids=str)
@pytest.mark.parametrize("size", [2, 4])
def test_call_pattern(ranks, size, lengths, dtype):
    ranks.run(size, step, lengths, None, dtype)
    ranks.run(size, step, lengths, 64, dtype)
