# SPDX-License-Identifier: Apache-2.0
"""Gradients under masks of blocks on a GPU, by its kernels for blocks. Random cases of both
directions are in test_gpu_sparse.py.
"""

import torch

from magi_attention.functional import block_sparse_attn_func
from on_gpu import NEEDS_GPU, ROWS, capture, inputs, no_waits
from test_gpu_sparse import SIZES, random_mask

pytestmark = NEEDS_GPU


def upstream():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(ROWS, 8, 64, generator=generator).bfloat16().cuda()


def gradients(mask, **options):
    q, k, v = leaves = inputs()
    out, meta = block_sparse_attn_func(q, k, v, mask, **SIZES, **options)
    return torch.autograd.grad((out, meta.lse), leaves, (upstream(), meta.lse.detach().sign()))


def test_the_deterministic_backward_agrees():
    """It goes by ranges, whose heads are folded into rows."""
    mask = random_mask()
    for found, wanted in zip(gradients(mask), gradients(mask, deterministic=True)):
        scale = wanted.float().abs().max()
        assert (found.float() - wanted.float()).abs().max() <= 0.02 * scale


def test_the_backward_is_that_of_the_mask_as_it_was():
    wanted = gradients(random_mask())
    mask = random_mask()
    q, k, v = leaves = inputs()
    out, meta = block_sparse_attn_func(q, k, v, mask, **SIZES)
    mask.zero_()
    found = torch.autograd.grad((out, meta.lse), leaves, (upstream(), meta.lse.detach().sign()))
    assert all(torch.equal(f, w) for f, w in zip(found[1:], wanted[1:]))


def test_the_backward_waits_for_nothing():
    leaves = inputs()
    out, _ = block_sparse_attn_func(*leaves, random_mask(), **SIZES)
    given = upstream()
    wanted = torch.autograd.grad(out, leaves, given, retain_graph=True)
    torch.cuda.synchronize()
    with no_waits():
        found = torch.autograd.grad(out, leaves, given)
    assert all(torch.equal(f, w) for f, w in zip(found[1:], wanted[1:]))


def test_a_captured_step_follows_the_mask():
    leaves, mask, given = inputs(), random_mask(), upstream()

    def step():
        out, _ = block_sparse_attn_func(*leaves, mask, **SIZES)
        return torch.autograd.grad(out, leaves, given)

    graph, found = capture(step)
    for seed in range(3):
        mask.copy_(random_mask(seed))
        graph.replay()
        assert all(torch.equal(f, w) for f, w in zip(found[1:], step()[1:]))
