# SPDX-License-Identifier: Apache-2.0
"""group_cast and group_reduce on one exchange of the process group's transport."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from magi_attention._native.moved_rows import as_given, as_moved, as_rows
from magi_attention._native.tensors import as_plain, refuse_transforms
from magi_attention._native.vtable import CAST, LSE_MERGE, SUM
from magi_attention.comm.group import communicator_of
from magi_attention.comm.process_group import rank_in
from magi_attention.common._arguments import as_bool, check_int, check_kind
from magi_attention.compat.work import WorkWithPostProcessFn

_REDUCE_OPS = ("sum", "avg", "lse")
_Rows = list[tuple[int, int, int]]  # (peer, first row, rows)


def group_cast(
    input: torch.Tensor,
    output: torch.Tensor | None,
    input_split_sizes: Sequence[int] | torch.Tensor,
    output_split_sizes: Sequence[int] | torch.Tensor,
    dst_indices: Sequence[Sequence[int]] | torch.Tensor,
    src_index: Sequence[int] | torch.Tensor,
    group: dist.ProcessGroup,
    async_op: bool = False,
    cast_lse: bool = False,
    input_lse: torch.Tensor | None = None,
    output_lse: torch.Tensor | None = None,
    **kwargs: Any,
) -> WorkWithPostProcessFn:
    """Sends split i of input, input_split_sizes[i] rows, to every rank of dst_indices[i]; split j
    of output, output_split_sizes[j] rows, comes from rank src_index[j]. Splits from one rank arrive
    in the order of that rank's input. Collective.

    input [rows, ...] and output, the same but for the number of rows (None: made here), do not
    overlap; on a GPU the group has nccl, and nothing waits for the device but index lists that are
    tensors there. With cast_lse the rows of input_lse [rows, heads] go along. Ranks count within
    the group; index lists may be tensors, dst_indices then [splits, n] filled up with -1. Further
    keywords are the original's native kernels' and have no effect.

    wait_post_process() of the result gives output, or (output, output_lse). ValueError for splits
    that do not add up to the rows and for ranks outside the group, CommError where it fails.
    """
    input = _plain_input(input, group)
    async_op, cast_lse = as_bool("async_op", async_op), as_bool("cast_lse", cast_lse)
    sizes = _ints("input_split_sizes", input_split_sizes, input.shape[0])
    wanted = _ints("output_split_sizes", output_split_sizes, _rows_of(output))
    destinations = _rank_sets("dst_indices", dst_indices, len(sizes), group)
    sources = [[rank] for rank in _ranks("src_index", src_index, len(wanted), group)]
    tensors = [input, _needed("input_lse", input_lse, input)] if cast_lse else [input]
    outputs = [_given_or_new("output", output, input, sum(wanted))]
    if cast_lse:
        outputs.append(_given_or_new("output_lse", output_lse, tensors[1], sum(wanted)))
    owned, needed = _records(sizes, destinations), _records(wanted, sources)
    moved = [as_moved(tensor) for tensor in outputs]
    sent = [as_moved(tensor) for tensor in tensors]
    wait = communicator_of(group).exchange(CAST, sent, moved, owned, needed)

    def finish(*_outputs):
        wait()
        for rows, output in zip(moved, outputs):
            if rows.data_ptr() != output.data_ptr():
                output.copy_(as_given(rows, output, output.shape[0]))
        return tuple(outputs) if cast_lse else outputs[0]

    return _started(finish, async_op)


def group_reduce(
    input: torch.Tensor,
    output: torch.Tensor | None,
    input_split_sizes: Sequence[int] | torch.Tensor,
    output_split_sizes: Sequence[int] | torch.Tensor,
    dst_index: Sequence[int] | torch.Tensor,
    src_indices: Sequence[Sequence[int]] | torch.Tensor,
    group: dist.ProcessGroup,
    async_op: bool = False,
    reduce_op: str = "sum",
    acc_reduce: bool = True,
    comm_dtype: torch.dtype | None = None,
    input_lse: torch.Tensor | None = None,
    output_lse: torch.Tensor | None = None,
    **kwargs: Any,
) -> WorkWithPostProcessFn:
    """The transpose of group_cast: split i of input goes to rank dst_index[i]; split j of output
    combines the partial rows of every rank of src_indices[j], in rank order. Collective.

    reduce_op "sum"; "avg", the mean of what is combined; "lse": input [rows, heads, dim] and
    input_lse [rows, heads] are softmax results over disjoint keys, and so are output and
    output_lse. acc_reduce: what output holds is combined too, else it is overwritten. comm_dtype:
    the type that input is sent in, default its own. output None: made here.

    wait_post_process() of the result gives output, or (output, output_lse) for "lse". Errors as
    group_cast; ValueError for another reduce_op.
    """
    input = _plain_input(input, group)
    async_op, acc_reduce = as_bool("async_op", async_op), as_bool("acc_reduce", acc_reduce)
    if comm_dtype is not None:
        check_kind("comm_dtype", comm_dtype, torch.dtype, "a torch.dtype, or None")
    if reduce_op not in _REDUCE_OPS:
        raise ValueError(f"reduce_op is {reduce_op!r}; allowed: {', '.join(_REDUCE_OPS)}")
    sizes = _ints("input_split_sizes", input_split_sizes, input.shape[0])
    wanted = _ints("output_split_sizes", output_split_sizes, _rows_of(output))
    destinations = [[rank] for rank in _ranks("dst_index", dst_index, len(sizes), group)]
    sources = _rank_sets("src_indices", src_indices, len(wanted), group)
    is_fresh = output is None or not acc_reduce
    outputs = [_given_or_new("output", output, input, sum(wanted), is_sum=True)]
    if is_fresh:
        outputs[0].zero_()
    tensors = [(input if comm_dtype is None else input.to(comm_dtype)).contiguous()]
    if reduce_op == "lse":
        tensors.append(_needed("input_lse", input_lse, input).contiguous())
        outputs.append(_given_or_new("output_lse", output_lse, tensors[1], sum(wanted), True))
        if is_fresh or output_lse is None:
            outputs[1].fill_(-torch.inf)
    totals = [_total(output, tensor) for output, tensor in zip(outputs, tensors)]
    owned, needed = _records(wanted, sources), _records(sizes, destinations)
    if reduce_op == "lse":
        wait = communicator_of(group).exchange(LSE_MERGE, tensors, totals, owned, needed)
    else:
        parts, sums = as_rows(tensors[0]), as_rows(totals[0])
        wait = communicator_of(group).exchange(SUM, [parts], [sums], owned, needed)

    def finish(*_outputs):
        wait()
        for total, output in zip(totals, outputs):
            if total is not output:
                output.copy_(total)
        if reduce_op == "avg":
            _divide(outputs[0], wanted, sources, 0 if is_fresh else 1)
        return tuple(outputs) if reduce_op == "lse" else outputs[0]

    return _started(finish, async_op)


def _started(finish, async_op: bool) -> WorkWithPostProcessFn:
    """A call whose finish waits and gives the result; without async_op it has waited already."""
    if not async_op:
        result = finish()
        return WorkWithPostProcessFn(post_process_fn=lambda *_outputs: result)
    return WorkWithPostProcessFn(post_process_fn=finish, async_op=True)


def _total(output: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Returns where parts are combined: output, or a copy that holds its values without a gap."""
    wide = torch.promote_types(output.dtype, part.dtype)
    values = output.resolve_neg() if output.is_neg() else output
    if wide == values.dtype and values.is_contiguous():
        return values
    return values.to(wide).contiguous()


def _divide(output: torch.Tensor, sizes: list[int], sources: list[list[int]], held: int) -> None:
    begin = 0
    for size, ranks in zip(sizes, sources):
        count = len(ranks) + held
        if count > 1:
            output[begin : begin + size] /= count
        begin += size


def _records(sizes: list[int], peers: list[list[int]]) -> _Rows:
    records, begin = [], 0
    for size, ranks in zip(sizes, peers):
        if size:
            records += [(rank, begin, size) for rank in ranks]
        begin += size
    return records


def _plain_input(input: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    refuse_transforms()
    rank_in("group", group)
    return _plain("input", input)


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    check_kind(name, tensor, torch.Tensor, "a torch.Tensor")
    if tensor.dim() == 0:
        raise ValueError(f"{name} has 0 axes; allowed: [rows, ...]")
    return as_plain(name, tensor)


def _rows_of(tensor: torch.Tensor | None) -> int | None:
    if tensor is None:
        return None
    return _plain("output", tensor).shape[0]


def _given_or_new(
    name: str, given: torch.Tensor | None, like: torch.Tensor, rows: int, is_sum: bool = False
) -> torch.Tensor:
    """`given`, which must be as `like` but for its rows and, where it takes a sum, its type."""
    if given is None:
        return like.new_empty((rows, *like.shape[1:]))
    _plain(name, given)
    wanted = (rows, *like.shape[1:])
    if tuple(given.shape) != wanted:
        raise ValueError(f"{name} has shape {list(given.shape)}; allowed: {list(wanted)}")
    if any(step == 0 and size > 1 for size, step in zip(given.shape, given.stride())):
        raise ValueError(
            f"{name} has strides {list(given.stride())}; allowed: no 0, as rows differ"
        )
    if given.device != like.device:
        raise ValueError(f"{name} is on {given.device}; allowed: {like.device}, as the input")
    if given.dtype != like.dtype and not is_sum:
        raise TypeError(f"{name}.dtype is {given.dtype}; allowed: {like.dtype}, as the input")
    return given


def _needed(name: str, tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    if tensor is None:
        raise ValueError(f"{name} is None; allowed: a tensor [rows, heads]")
    tensor = _plain(name, tensor)
    if tensor.shape[0] != like.shape[0]:
        raise ValueError(f"{name} has {tensor.shape[0]} rows; allowed: {like.shape[0]}, as input")
    return tensor


def _ints(name: str, values: Sequence[int] | torch.Tensor, total: int | None) -> list[int]:
    """Sizes of splits; they add up to total, unless that is None."""
    sizes = [check_int(f"{name}[{i}]", size, 0) for i, size in enumerate(_as_list(name, values))]
    if total is not None and sum(sizes) != total:
        raise ValueError(f"{name} adds up to {sum(sizes)}; allowed: {total}, the tensor's rows")
    return sizes


def _as_list(name: str, values: Sequence | torch.Tensor) -> list:
    check_kind(name, values, (list, tuple, torch.Tensor), "a list or a tensor")
    return as_plain(name, values).tolist() if isinstance(values, torch.Tensor) else list(values)


def _ranks(name: str, values, count: int, group: dist.ProcessGroup) -> list[int]:
    ranks = _as_list(name, values)
    if len(ranks) != count:
        raise ValueError(f"{name} has {len(ranks)} entries; allowed: {count}, one per split")
    _check_ranks(name, ranks, group)
    return ranks


def _rank_sets(name: str, values, count: int, group: dist.ProcessGroup) -> list[list[int]]:
    is_tensor = isinstance(values, torch.Tensor)
    entries = [_as_list(f"{name}[{i}]", e) for i, e in enumerate(_as_list(name, values))]
    sets = [[r for r in entry if r != -1 or not is_tensor] for entry in entries]
    if len(sets) != count:
        raise ValueError(f"{name} has {len(sets)} entries; allowed: {count}, one per split")
    for ranks in sets:
        _check_ranks(name, ranks, group)
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"{name} holds {ranks}; allowed: every rank once")
    return sets


def _check_ranks(name: str, ranks: list[int], group: dist.ProcessGroup) -> None:
    size = dist.get_world_size(group)
    for rank in ranks:
        if not 0 <= check_int(f"a rank of {name}", rank, -sys.maxsize) < size:  # its type alone
            raise ValueError(f"{name} holds rank {rank}; allowed: 0 to {size - 1}")
