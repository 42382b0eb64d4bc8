# SPDX-License-Identifier: Apache-2.0
"""Saved tensors that hooks give back as something else: one process or every rank runs the cases.
Any of compression, offload or sharding by other packages does this.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.graph import saved_tensors_hooks

from sparse_cases import HEADS, bound_under, lists_inside, tensors, window_of
from view_cases import permuted, sliced, strided, turned


def freed(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach().clone()
    found.untyped_storage().resize_(0)
    return found


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
LAYOUTS = (permuted, turned, sliced, strided)


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


def over_ranks(group, rows: int = 60) -> None:
    bound = bound_under(window_of(rows, 20), group)
    local = [bound.dispatch(leaf.detach()).requires_grad_() for leaf in tensors(rows)]
    upstream = torch.ones_like(local[0])
    check(bound.calc_attn, local, upstream, 5)
    sink = torch.zeros(1, HEADS[0], dtype=torch.float64, requires_grad=True)
    check(bound.calc_attn, [*local, sink], upstream, 6)
    lists = bound.dispatch(lists_inside(rows, 8, 3, 1))
    check(lambda *qkv: bound.calc_sparse_attn(*qkv, lists), local, upstream, 5)
