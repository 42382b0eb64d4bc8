# SPDX-License-Identifier: Apache-2.0
"""Backwards of tensors that are not what forward saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks

from magi_attention._native import attention
from magi_attention.api import flex_flash_attn_func
from magi_attention.errors import CommError
from ranks import over, own_group, refuses_soon
from test_derivatives import LISTS, RANGES, ROWS, Watching
from test_plain_tensors import freed
from test_sparse_ranks import HEADS, bound_under, lists_inside, tensors, window_of
from test_views import negated, permuted, sliced, strided, turned

# What is refused; what changes nothing.
OTHERS: dict[str, Callable] = {
    "double": lambda t: t.to(torch.float64 if t.dtype != torch.float64 else torch.float32),
    "half": lambda t: t.to(torch.bfloat16 if t.dtype != torch.bfloat16 else torch.float16),
    "fewer rows": lambda t: t[: len(t) // 2].contiguous(),
    "more rows": lambda t: torch.cat((t, t)),
    "fewer heads": lambda t: t[:, : t.shape[1] // 2].contiguous(),
    "flat": lambda t: t.flatten(),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "freed": freed,
}
# How errors begin; the last ones are torch's, of operators.
_NAMED = (
    "q", "k", "v", "out", "lse", "sink", "dout", "dlse", "index_sparse",
    "Function ListedAttentionBackward", "Function _FlexAttentionBackward", "Could not run",
)  # fmt: skip
LAYOUTS = (permuted, turned, sliced, strided, negated)


def watched(function, *given, **options):
    with Watching():
        return function(*given, **options)


def check(
    call: Callable, leaves: list[torch.Tensor], upstream: torch.Tensor, num_saved: int,
    tolerance: float = 1e-6,
) -> None:  # fmt: skip
    """call(*leaves) -> out, meta. Each of the first num_saved tensors that it saves comes back as
    each of the others. Errors name a tensor; other layouts give the same gradients.
    """

    def gradients(index: int, change: Callable) -> list[torch.Tensor]:
        saved: list[int] = []

        def pack(tensor):
            saved.append(len(saved))
            return saved[-1], tensor.detach()

        def unpack(packed):
            number, tensor = packed
            return change(tensor) if number == index else tensor

        with saved_tensors_hooks(pack, unpack):
            out, meta = call(*leaves)
        assert len(saved) >= num_saved, saved
        roots = (out, meta.lse)
        given = upstream, torch.ones_like(meta.lse)
        return list(torch.autograd.grad(roots, leaves, given, allow_unused=True))

    wanted = gradients(-1, None)
    for index in range(num_saved):
        for name, change in OTHERS.items():
            try:
                gradients(index, change)
            except (ValueError, TypeError, RuntimeError) as error:
                assert str(error).startswith(_NAMED), f"{name} of {index}: {error}"
            else:
                raise AssertionError(f"{name} of {index} was taken")
        for layout in LAYOUTS:
            try:
                found = gradients(index, layout)
            except ValueError as error:  # operators refuse what forward refuses
                assert ".stride[" in str(error), error
                continue
            for f, w in zip(found, wanted):
                error = (f.double() - w.double()).abs().max() if w.numel() else 0
                assert error <= tolerance * w.abs().max(), f"{layout.__name__} of {index}: {error}"


@over(1, 2)
def test_over_ranks(group, rows: int = 60):
    bound = bound_under(window_of(rows, 20), group)
    local = [bound.dispatch(leaf.detach()).requires_grad_() for leaf in tensors(rows)]
    upstream = torch.ones_like(local[0])
    check(bound.calc_attn, local, upstream, 5)
    sink = torch.zeros(1, HEADS[0], dtype=torch.float64, requires_grad=True)
    check(bound.calc_attn, [*local, sink], upstream, 6)
    lists = bound.dispatch(lists_inside(rows, 8, 3, 1))
    check(lambda *qkv: bound.calc_sparse_attn(*qkv, lists), local, upstream, 5)


def leaves(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(ROWS, heads, 8, generator=generator) for heads in (4, 2, 2))
    return [t.to(dtype).requires_grad_() for t in made]


@pytest.mark.parametrize("has_views", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_ranges(monkeypatch, dtype, has_views):
    """has_views: whether torch is new enough to tell forms of tensors to the module of calls."""
    monkeypatch.setattr(attention, "_HAS_VIEWS", attention._HAS_VIEWS and has_views)
    given, upstream = leaves(dtype), torch.ones(ROWS, 4, 8, dtype=dtype)

    def call(q, k, v, sink=None):
        return flex_flash_attn_func(q, k, v, RANGES, RANGES, sink=sink)

    check(call, given, upstream, 5)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    check(call, [*given, torch.zeros(1, 4, dtype=wide, requires_grad=True)], upstream, 6)


@pytest.mark.parametrize("function", [flex_flash_attn_func, partial(watched, flex_flash_attn_func)])
@pytest.mark.parametrize("mask", [(RANGES, RANGES), LISTS], ids=["ranges", "lists"])
def test_of_operators(mask, function):
    def call(*qkv):
        if isinstance(mask, tuple):
            return function(*qkv, *mask)
        return function(*qkv, index_sparse_indices=mask)

    check(call, leaves(), torch.ones(ROWS, 4, 8), 5)


def test_data_that_is_replaced():
    """As packages that shard weights do between forward and backward."""
    given = leaves()
    out, _ = flex_flash_attn_func(*given, RANGES, RANGES)
    given[1].data = given[1].data[:3].clone()
    with pytest.raises(ValueError, match=r"^k has shape \[3, 2, 8\], .* in backward; allowed: sha"):
        out.sum().backward()


# Calls of one rank whose backward moves rows.
MOVING = {
    "eager": lambda bound, local, lists: bound.calc_attn(*local)[0],
    "with a sink": lambda bound, local, lists: bound.calc_attn(
        *local, torch.zeros(1, HEADS[0], dtype=torch.float64)
    )[0],
    "watched": lambda bound, local, lists: watched(bound.calc_attn, *local)[0],
    "lists": lambda bound, local, lists: bound.calc_sparse_attn(*local, lists)[0],
    "roll": lambda bound, local, lists: bound.roll(local[0], 1),
    "dispatch": lambda bound, local, lists: bound.dispatch(torch.zeros(60, 1).requires_grad_()),
    "undispatch": lambda bound, local, lists: bound.undispatch(local[0], is_partial_grad=True),
}


@over(2)
@pytest.mark.parametrize("what", MOVING)
def test_differing_ranks(group, what, rows: int = 60):
    """One rank alone is given back something else, or asks for second derivatives; the others are
    told, and do not wait for the group's timeout.
    """
    bound = bound_under(window_of(rows, 20), own_group(dist.get_process_group_ranks(group)))
    local = [bound.dispatch(leaf.detach()).requires_grad_() for leaf in tensors(rows)]
    lists = bound.dispatch(lists_inside(rows, 8, 3, 1))
    is_odd, has_saved = dist.get_rank(group) == 1, what not in ("roll", "dispatch", "undispatch")
    MOVING[what](bound, local, lists).sum().backward()

    def unpack(tensor):  # nothing that torch's own functions save
        return tensor[: len(tensor) // 2] if is_odd and tensor.is_floating_point() else tensor

    with saved_tensors_hooks(lambda t: t, unpack):
        out = MOVING[what](bound, local, lists)
    if is_odd:
        step = partial(out.sum().backward, create_graph=not has_saved)
        refuses_soon(step, (ValueError, RuntimeError), "")
    else:
        refuses_soon(out.sum().backward, CommError, "rank 1 refused its arguments: ")
    dist.barrier(group)
