# SPDX-License-Identifier: Apache-2.0
"""A layer in parts, of which one at a time holds what it needs: attention by groups of kv heads,
functions of rows and the loss over chunks of rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from magi_attention._native.tensors import PLAIN_TYPES
from magi_attention.common._arguments import check_int, check_kind
from magi_attention.plan import BoundPlan
from magi_attention.training.checkpoint import save_attention

Projection = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
Changes = Iterator[tuple[torch.nn.Module, dict[str, Any]]]  # attributes in place of a module's own


def attend_by_groups(
    bound: BoundPlan, x: torch.Tensor, project: Projection, num_groups: int, *,
    finish: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
    context_fn: Callable[[], tuple[Any, Any]] = save_attention, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Attention whose heads come in groups, one after the other: q, k and v of a group are
    projected, exchanged, attended and dropped, and projected again in the backward. Collective.

    - bound: a plan for the heads of one group: 8 query and 2 kv heads for a layer of 32:8 heads in
      four groups.
    - x [rows, ...]: this rank's rows. project(x, group) gives q [rows, heads_q, dim] and k, v
      [rows, heads_kv, dim] of a group, rotated if they are to be.
    - finish(out, group): what is added up over groups in place of out of all heads, such as the
      product with the group's columns of the output projection.
    - context_fn: of the group's checkpoint; options: those of BoundPlan.calc_attn.

    Returns out [rows, heads of all groups, dim], or the sum over groups of finish. Values and
    gradients are those of all heads at once; a sum over groups rounds once for each. ValueError or
    TypeError as calc_attn.
    """
    check_kind("bound", bound, BoundPlan, "a bound plan, of the heads of one group")
    check_kind("x", x, torch.Tensor, "a tensor")
    check_kind("project", project, Callable, "a function")
    check_int("num_groups", num_groups, 1)

    def attend(x: torch.Tensor, group: int) -> torch.Tensor:
        out, _ = bound.calc_attn(*project(x, group), **options)
        return out if finish is None else finish(out, group)

    outs, total = [], None
    for group in range(num_groups):
        out = checkpoint(attend, x, group, use_reentrant=False, context_fn=context_fn)
        if finish is None:
            outs.append(out)
        else:
            total = out if total is None else total + out
    return torch.cat(outs, 1) if total is None else total


def come_by_groups(
    layer: Any, num_groups: int, kv_heads: int, changes: Callable[[Any, int], Changes], plan: str
) -> None:
    """Has the forward of an attention layer of so many kv heads run once for each group of them,
    under changes(layer, group), where a call has the keyword `plan`. The first of its results is
    added up; what a group computes comes again in the backward. ValueError unless groups divide
    kv heads.
    """
    if kv_heads % check_int("head_groups", num_groups, 1):
        kind = type(layer).__name__
        raise ValueError(f"head_groups is {num_groups}; allowed: divisors of {kv_heads} in {kind}")
    found = getattr(layer.forward, "__func__", layer.forward)
    if "forward" in vars(layer) and getattr(found, "of_groups", None) is not found:
        raise cannot_split(layer, "another forward than its class")
    own = type(layer).forward

    def attend(layer: Any, group: int, *arguments: Any, **keywords: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for module, values in changes(layer, group):
                stack.enter_context(hiding(module, **values))
            return own(layer, *arguments, **keywords)

    @torch.compiler.disable  # attributes change
    def forward(layer: Any, *arguments: Any, **keywords: Any) -> Any:
        if keywords.get(plan) is None:
            return own(layer, *arguments, **keywords)
        total, keywords["context_fn"] = None, save_attention
        for group in reversed(range(num_groups)):  # the first has the bias of a sum
            given = layer, group, *arguments
            out, *others = checkpoint(attend, *given, use_reentrant=False, **keywords)
            total = out if total is None else total + out
        return total, *others

    forward.of_groups = forward  # wrappers copy attributes
    layer.forward = MethodType(forward, layer)


def part_of(linear: Any, num_groups: int, group: int, dim: int = 0) -> dict[str, Any]:
    """The parameters of a projection to the heads of a group (dim 0), or from these (1)."""
    weight, bias = linear.weight, linear.bias
    if type(weight) not in PLAIN_TYPES:
        raise cannot_split(linear, f"a {type(weight).__name__} as weight")
    values = {"weight": weight.chunk(num_groups, dim)[group]}
    if bias is not None and (dim == 0 or group):
        values["bias"] = bias.chunk(num_groups)[group] if dim == 0 else None
    return values


def cannot_split(layer: Any, what: str) -> ValueError:
    """The error of a layer that is not heads side by side."""
    return ValueError(
        f"{type(layer).__name__} has {what}; allowed with head_groups: heads side by side between "
        "projections of plain weights"
    )


@contextlib.contextmanager
def hiding(module: torch.nn.Module, **values: Any) -> Iterator[None]:
    """Attributes that a module has in place of its own for a while."""
    own = {name: vars(module)[name] for name in values if name in vars(module)}
    vars(module).update(values)
    try:
        yield
    finally:
        for name in values:
            del vars(module)[name]
        vars(module).update(own)


def over_rows(
    function: Callable[..., torch.Tensor],
    *tensors: torch.Tensor,
    rows: int,
    dim: int = 0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """function(*tensors), a function of each row for itself such as an MLP, over chunks of at most
    `rows` rows, which are axis `dim` of tensors and result. A chunk is computed again in the
    backward, where one at a time holds what lies inside of the function.

    - group: ranks that call a collective function, such as a module that FSDP shards by itself:
      they agree on the number of chunks, of which those of a rank with few rows are short or empty.
      Collective. None: ranks with other numbers of rows may have other numbers of chunks.

    ValueError or TypeError for tensors of other numbers of rows and for other arguments.
    """
    check_int("rows", rows, 1)
    check_kind("group", group, (dist.ProcessGroup, type(None)), "a process group, None")
    if not tensors:
        raise ValueError("tensors are none; allowed: one or more")
    check_kind("function", function, Callable, "a function")
    for number, tensor in enumerate(tensors):
        check_kind(f"tensors[{number}]", tensor, torch.Tensor, "a tensor")
        if tensor.dim() == 0:
            raise ValueError(f"tensors[{number}] has no axis; allowed: one of rows, and others")
    axes = min(tensor.dim() for tensor in tensors)
    dim = check_int("dim", dim, -axes, axes - 1)
    count = -(-tensors[0].shape[dim] // rows)
    for tensor in tensors[1:]:
        if tensor.shape[dim] != tensors[0].shape[dim]:
            raise ValueError(
                f"tensors have {tensors[0].shape[dim]} and {tensor.shape[dim]} rows in axis {dim}; "
                "allowed: equally many"
            )
    if group is not None:
        most = torch.tensor(count, device=tensors[0].device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group)
        count = int(most)
    chunks = zip(*(tensor.tensor_split(max(1, count), dim) for tensor in tensors))
    return torch.cat([checkpoint(function, *chunk, use_reentrant=False) for chunk in chunks], dim)


def loss_over_rows(
    head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, labels: torch.Tensor,
    rows: int = 4096, ignore_index: int = -100, group: dist.ProcessGroup | None = None,
) -> torch.Tensor:  # fmt: skip
    """The sum of the cross entropies of head(hidden) [rows, vocabulary] and labels [rows], which
    are shifted before, in float32 (float64 for such logits), over chunks of `rows` rows: logits of
    more are never held. Rows of the label ignore_index count nothing. group: as over_rows.
    ValueError where head gives another shape, and ValueError or TypeError as over_rows.
    """
    check_kind("head", head, Callable, "a function")
    check_int("ignore_index", ignore_index, -(1 << 63))

    def losses(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = head(hidden)
        if logits.shape[:1] + logits.shape[2:] != labels.shape:
            raise ValueError(
                f"head gives shape {list(logits.shape)}, labels {list(labels.shape)}; allowed: "
                "[rows, vocabulary] and [rows]; try: hidden[0] and labels[0] of a batch of one"
            )
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return cross_entropy(wide, labels, ignore_index=ignore_index, reduction="none")

    return over_rows(losses, hidden, labels, rows=rows, group=group).sum()
