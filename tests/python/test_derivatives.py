# SPDX-License-Identifier: Apache-2.0
"""Second derivatives and transforms of functions, which this package has not."""

import pytest
import torch

import derivative_cases
from magi_attention import Plan, masks
from magi_attention.functional import block_sparse_attn_func, flex_flash_attn_func

ROWS = 6
RANGES = torch.tensor([[0, ROWS]], dtype=torch.int32)
LISTS = torch.arange(ROWS, dtype=torch.int32).expand(ROWS, 2, ROWS).contiguous()


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    "mask",
    [{"q_ranges": RANGES, "k_ranges": RANGES}, {"index_sparse_indices": LISTS}],
    ids=["ranges", "lists"],
)
def test_on_one_device(mask, is_watched):
    def attend(q, k, v):
        if not is_watched:
            return flex_flash_attn_func(q, k, v, **mask)[:1]
        with derivative_cases.Watching():
            return flex_flash_attn_func(q, k, v, **mask)[:1]

    leaves = [torch.randn(ROWS, 2, 8, requires_grad=True) for _ in range(3)]
    derivative_cases.refuses_second("attention", attend, *leaves)


def calls():
    """Functions of q."""
    bound = Plan.from_mask(
        masks.from_cu_seqlens([0, ROWS]), cp_size=1, num_heads_q=2, num_heads_kv=2, head_dim=8
    ).bind()
    kv = [torch.randn(ROWS, 2, 8)] * 2
    blocks = {"block_mask": torch.ones(1, 1, 1).bool(), "q_block_size": 6, "k_block_size": 6}
    return [
        lambda q: flex_flash_attn_func(q, *kv, RANGES, RANGES)[0],
        lambda q: flex_flash_attn_func(q, *kv, index_sparse_indices=LISTS)[0],
        lambda q: block_sparse_attn_func(q, *kv, **blocks)[0],
        lambda q: bound.calc_attn(q, *kv)[0],
        lambda q: bound.calc_sparse_attn(q, *kv, LISTS)[0],
        lambda q: bound.calc_attn(*[kv[0]] * 3)[0] * q,  # of nothing that is transformed
        bound.dispatch,
        bound.undispatch,
        lambda q: bound.roll(q, 1),
    ]


TRANSFORMS = [
    lambda call, q: torch.func.vmap(call)(torch.stack((q, q))),
    lambda call, q: torch.func.grad(lambda x: call(x).sum())(q),
    lambda call, q: torch.func.jvp(call, (q,), (q,)),
    lambda call, q: torch.func.jacrev(call)(q),
    lambda call, q: torch.func.vjp(call, q),
]


@pytest.mark.parametrize("call", calls())
def test_transforms_are_refused(call):
    q = torch.randn(ROWS, 2, 8)
    call(q)
    for transform in TRANSFORMS:
        with pytest.raises(NotImplementedError, match=r"^torch.func's transforms .*; use torch.a"):
            transform(call, q)
    with pytest.raises(NotImplementedError, match=r"^torch.jit.trace is not .*; use torch.export"):
        torch.jit.trace(call, (q,))


@pytest.mark.parametrize("size", [1, 3])
def test_over_ranks(ranks, size):
    ranks.run(size, derivative_cases.second_derivatives)


@pytest.mark.parametrize("size", [1, 3])
def test_of_undispatch(ranks, size):
    ranks.run(size, derivative_cases.second_derivatives_of_undispatch)
