# SPDX-License-Identifier: Apache-2.0
"""The rows that a plan places on one rank, and their moves from and to the whole sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist

from magi_attention._group_holders import holds_groups
from magi_attention._native import structs
from magi_attention._native.attention import TensorStruct, current_stream, device_index
from magi_attention._native.handles import PlacementHandle
from magi_attention._native.library import check, lib
from magi_attention._native.moved_rows import as_given, as_moved, as_rows
from magi_attention._native.vtable import Communicator
from magi_attention.comm.first_call import begin, first_calls_of
from magi_attention.common._lru import LruCache

_PARTIAL_GRADIENT = 1
_CALLS_KEPT = 64  # ranks forget them alike, as all go through the same calls
_HOST = torch.device("cpu")


class Rows:
    """Selects, gathers, reduces and rolls rows along axis 0. select makes no communication; the
    others are collective, in the same order on all ranks.

    count: own rows, padding included; num_valid: those that come before the padding; chunk_size:
    rows that are placed together; is_alone: whether there is only one rank.
    """

    def __init__(
        self,
        placement: PlacementHandle,
        total_seqlen: int,
        num_valid: int,
        communicator: Communicator,
        cp_group: dist.ProcessGroup | None,
        plan_digest: int,
    ) -> None:
        self.total_seqlen, self.num_valid = total_seqlen, num_valid
        self.communicator, self.cp_group = communicator, cp_group
        holds_groups(self, "cp_group")
        rank = 0 if cp_group is None else dist.get_rank(cp_group)
        self._is_of_gpus = cp_group is not None and dist.get_backend(cp_group) == "nccl"
        self.count = placement.rows_of(rank)
        self._placement, info = placement, placement.info()
        self.chunk_size = info.chunk_size
        self.is_alone = info.num_ranks == 1  # rows are in the order of the sequence
        self._rank = rank
        self._ids_on: dict[torch.device, torch.Tensor] = {}
        self._digest, self._agreed = plan_digest, LruCache(_CALLS_KEPT)
        self._plan = f"{plan_digest:016x}"

    def position_ids_on(self, device: torch.device) -> torch.Tensor:
        """int64 [count]: row of the sequence of every own row, on a device. Padding counts as the
        last row. The caller's own tensor: it may be changed in place.
        """
        return self._ids_kept_on(device).clone()

    def _ids_kept_on(self, device: torch.device) -> torch.Tensor:
        """Those that rows are selected by, copied to a device once."""
        ids = self._ids_on.get(device)
        if ids is None:
            with torch.inference_mode(False):  # kept, also for training, which may save them
                host = self._ids_on.get(_HOST)
                if host is None:
                    host = self._ids_on[_HOST] = self.ids_of(self._rank)
                ids = self._ids_on[device] = host.to(device)
        return ids

    def ids_of(self, rank: int) -> torch.Tensor:
        """int64 [its rows], in host memory: position_ids of another rank."""
        ids = self._placement.position_ids(rank, self.total_seqlen)
        if not ids:
            return torch.empty(0, dtype=torch.int64, device=_HOST)
        # A view of the array's memory: torch.tensor would read it element by element.
        return torch.frombuffer(ids, dtype=torch.int64)

    def position_ids(self) -> torch.Tensor:
        """position_ids_on the host, or the current GPU for a group that moves nothing else."""
        if self._is_of_gpus:
            return self.position_ids_on(torch.device("cuda", torch.cuda.current_device()))
        return self.position_ids_on(_HOST)

    def select(self, x: torch.Tensor, pad_value: float) -> torch.Tensor:
        """Own rows of a global tensor; padding rows hold pad_value."""
        local = x.index_select(0, self._ids_kept_on(x.device))
        if self.num_valid < self.count:
            local[self.num_valid :] = pad_value
        return local

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Everyone's rows in the order of the sequence, without padding."""
        if self.is_alone:
            return x[: self.total_seqlen].clone()
        with self.refusals():
            local = as_moved(x)
        self.begin("undispatch", x)
        whole = local.new_empty((self.total_seqlen, local.shape[1]))
        source, target = TensorStruct(local), TensorStruct(whole)
        placement, group = self._placement.address, self.communicator.address
        stream = current_stream(device_index(local))
        check(lib.magi_undispatch(source.address, placement, group, target.address, stream))
        return as_given(whole, x, self.total_seqlen)

    def reduce(self, grad: torch.Tensor) -> torch.Tensor:
        """Own rows of the sum of everyone's global tensors; padding rows are 0."""
        if self.is_alone:
            return self.select(grad, 0.0)
        if grad.is_complex():
            return torch.view_as_complex(self.reduce(torch.view_as_real(grad.resolve_conj())))
        with self.refusals():
            whole = as_rows(grad)
        self.begin("sum of gradients", grad)
        local = whole.new_empty((self.count, whole.shape[1]))
        source, target = TensorStruct(whole), TensorStruct(local)
        args = structs.UndispatchGradient(
            global_gradient=source.address, local_gradient=target.address, mode=_PARTIAL_GRADIENT
        )
        self._move(lib.magi_undispatch_backward, args, whole)
        return local.view(self.count, *grad.shape[1:])

    def roll(self, x: torch.Tensor, shift: int) -> torch.Tensor:
        """Own rows of torch.roll of the sequence by shift; padding rows stay."""
        if self.is_alone:
            # By copies, which know every type; torch.roll does not on a GPU.
            rolled, end = torch.empty_like(x), self.total_seqlen
            first = shift % end
            rolled[:first] = x[end - first : end]
            rolled[first:end] = x[: end - first]
            rolled[end:] = x[end:]
            return rolled
        with self.refusals():
            local = as_moved(x)
        self.begin("roll", x, shift % self.total_seqlen)
        rolled = torch.empty_like(local)
        source, target = TensorStruct(local), TensorStruct(rolled)
        args = structs.RollArgs(
            local=source.address, out=target.address, num_valid_rows=self.total_seqlen, shift=shift
        )
        self._move(lib.magi_roll, args, local)
        return as_given(rolled, x, self.count)

    def exchange(
        self,
        function: str,
        kind: int,
        x: torch.Tensor,
        out: torch.Tensor,
        owned: list[tuple[int, int, int]],
        needed: list[tuple[int, int, int]],
    ) -> None:
        """Moves rows of x between ranks into out, as Communicator.exchange; kind: CAST or SUM."""
        if self.is_alone:
            return
        self.begin(function, x)
        self.communicator.exchange(kind, [x], [out], owned, needed, self._digest)()

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Tells the other ranks, which may wait in this call, of an error that is raised within."""
        try:
            yield
        except Exception as error:
            first_calls = None if self.is_alone else first_calls_of(self.cp_group)
            if first_calls is not None:
                (first_calls.later if first_calls.have_agreed else first_calls).refuse(error)
            raise

    def begin(self, function: str, x: torch.Tensor, shift: int = 0) -> None:
        """Notes a call for those that another rank's refusal is for. Collective where it is the
        group's first, or new on GPUs and transports there show ranks no exchange: CommError on all
        of them where they differ. Others compare every exchange.
        """
        first_calls = first_calls_of(self.cp_group)
        kind = function, x.dtype, x.shape[1:], shift
        is_shown = x.device.type == "cpu" or self.communicator.backend == "nvlink"
        if first_calls is not None and is_shown and not first_calls.have_agreed:
            first_calls.compare({"function": function})
        elif first_calls is not None and not is_shown and kind not in self._agreed:
            names = "function", "dtype", "shape of a row", "shift"
            values = function, str(x.dtype).removeprefix("torch."), str([*x.shape[1:]]), str(shift)
            first_calls.compare({"plan": self._plan} | dict(zip(names, values)))
            self._agreed[kind] = True
        begin(self.cp_group, {"function": function})

    def _move(self, function, args, x: torch.Tensor) -> None:
        """Calls function(args, placement, communicator, the current stream of x's device)."""
        placement, group = self._placement.address, self.communicator.address
        check(function(args.address, placement, group, current_stream(device_index(x))))


def num_valid_rows(placement: PlacementHandle, total: int, rank: int) -> int:
    """Local rows of a rank without padding, which comes after them; total: of the sequence."""
    info = placement.info()
    owners = info.chunk_rank[: info.num_chunks]
    firsts = [i * info.chunk_size for i, owner in enumerate(owners) if owner == rank]
    return sum(min(row + info.chunk_size, total) - row for row in firsts if row < total)


class HasRows(Protocol):
    """The type that functions of rows take: a bound plan (magi_attention.plan.Plan.bind)."""

    rows: Rows
