# SPDX-License-Identifier: Apache-2.0
"""What other systems do, with our kernel: Ulysses, a zigzag ring, an all-gather of keys and values,
and Ulysses around a ring (USP). forward(q, k, v) gives out and what backward(dout, saved) needs,
which gives dq, dk, dv; tensors are [local rows, heads, dim]. rows: those of each rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from distributed import layouts
from distributed.kernel import Kernel, accumulator_dtype, merge_on
from distributed.links import NO_SHIFT, Link


def wide(x: torch.Tensor) -> torch.Tensor:
    """x as elements of 16 bytes, which are copied faster; x itself where they do not fit."""
    fits = x.shape[-1] * x.element_size() % 16 == 0
    return x.view(torch.complex128) if fits else x


class Ulysses:
    """Every rank of the group has all its rows for a share of the heads: one all-to-all carries q,
    k and v there and one carries out back. inner: attention of those rows and heads.
    """

    def __init__(self, group: dist.ProcessGroup, inner) -> None:
        self._link, self._inner = Link(group), inner

    @property
    def bytes_sent(self) -> int:
        return self._link.bytes_sent + getattr(self._inner, "bytes_sent", 0)

    def forward(self, q, k, v):
        out, saved = self._inner.forward(*self._to_heads(q, k, v))
        (out,) = self._to_rows(out)
        return out, saved

    def backward(self, dout, saved):
        (dout,) = self._to_heads(dout)
        return self._to_rows(*self._inner.backward(dout, saved))

    def _to_heads(self, *tensors):
        """[rows, heads, dim] each -> [rows of the group, heads / size, dim] each; views of one
        buffer where there are several.
        """
        size, (rows, _, dim) = self._link.size, tensors[0].shape
        shares = [t.shape[1] // size for t in tensors]
        sent = tensors[0].new_empty(size, rows, sum(shares), dim)
        for tensor, part in zip(tensors, sent.split(shares, 2)):
            wide(part).copy_(wide(tensor.view(rows, size, -1, dim)).transpose(0, 1))
        received = torch.empty_like(sent)
        self._link.all_to_all(received, sent)
        return received.view(size * rows, -1, dim).split(shares, 1)

    def _to_rows(self, *tensors):
        """The reverse of _to_heads."""
        size, (rows, _, dim) = self._link.size, tensors[0].shape
        rows //= size
        shares = [t.shape[1] for t in tensors]
        sent = tensors[0]
        if len(tensors) > 1:
            parts = [wide(t.view(size, rows, -1, dim)) for t in tensors]
            sent = torch.cat(parts, 2).view(sent.dtype)
        received = torch.empty_like(sent)
        self._link.all_to_all(received, sent)
        parts = received.view(size, rows, -1, dim).split(shares, 2)
        parts = [wide(part).transpose(0, 1).contiguous() for part in parts]
        return [part.view(received.dtype).view(rows, -1, dim) for part in parts]


class AllGather:
    """Keys and values of all ranks on each, again in the backward, and a reduce-scatter of their
    gradients. Ranks hold a chunk from the front and one from the back; keys are put in the order
    of the sequence, where slices of the mask stay whole.
    """

    def __init__(self, group: dist.ProcessGroup, slices, rows, total: int) -> None:
        self._link = Link(group)
        size, own = self._link.size, rows[self._link.rank]
        num_own = sum(end - begin for begin, end in own)
        self._kernel = Kernel(layouts.between(slices, own, [(0, total)]), num_own, total)
        chunk = total // (2 * size)
        # Gathered: rank, key or value, chunk of the rank. Wanted: key or value, chunk.
        places = {}
        for rank, ranges in enumerate(rows):
            for index, (begin, _) in enumerate(ranges):
                for kind in range(2):
                    places[kind, begin // chunk] = (rank * 2 + kind) * 2 + index
        self._order = [places[kind, i] for kind in range(2) for i in range(2 * size)]
        self._places = None

    @property
    def bytes_sent(self) -> int:
        return self._link.bytes_sent

    def forward(self, q, k, v):
        out, lse = self._kernel.attend(q, *self._gather(k, v))
        return out, (q, k, v, out, lse)

    def backward(self, dout, saved):
        q, k, v, out, lse = saved
        keys = self._gather(k, v)
        dq, dk, dv = self._kernel.backward(dout, (q, *keys, out, lse))
        sent = dk.new_empty(2, *dk.shape)
        chunks = wide(sent.view(len(self._order), -1))
        for places, part in zip(self._places.chunk(2), (dk, dv)):
            chunks.index_copy_(0, places, wide(part.view(len(places), -1)))
        received = k.new_empty(2, *k.shape)
        self._link.reduce_scatter(received, sent)
        return dq, *received

    def _gather(self, k, v):
        if self._places is None:
            self._places = torch.tensor(self._order, device=k.device)
        sent = torch.stack((k, v))
        gathered = sent.new_empty(self._link.size, *sent.shape)
        self._link.all_gather(gathered, sent)
        chunks = wide(gathered.view(len(self._order), -1)).index_select(0, self._places)
        return chunks.view(k.dtype).view(2, -1, *k.shape[1:])


class Ring:
    """Keys and values travel around the ring while attention of those at hand runs; their gradients
    travel behind them, in the wide type. Queries and keys that a part of the mask does not touch
    are left out of its kernel.
    """

    def __init__(self, group: dist.ProcessGroup, slices, rows) -> None:
        self._link = Link(group)
        self._steps = []  # by distance to the owner of the keys: (kernel, queries, keys) or None
        for step in range(self._link.size):
            owner = (self._link.rank - step) % self._link.size
            part = layouts.between(slices, rows[self._link.rank], rows[owner])
            if not part:
                self._steps.append(None)
                continue
            q, k = layouts.hull(part)
            kernel = Kernel(layouts.moved(part, q[0], k[0]), q[1] - q[0], k[1] - k[0])
            self._steps.append((kernel, slice(*q), slice(*k)))

    @property
    def bytes_sent(self) -> int:
        return self._link.bytes_sent

    def forward(self, q, k, v):
        keys = [torch.stack((k, v))]
        keys += [torch.empty_like(keys[0]) for _ in range(min(2, self._link.size - 1))]
        sums = _Sums(q, v)
        for index, step in enumerate(self._steps):
            shift, here = self._start(index, keys)
            if step is not None:
                kernel, queries, some = step
                sums.add(queries, *kernel.attend(q[queries], here[0][some], here[1][some]))
            shift.wait()
        out, lse = sums.result()
        return out, (q, keys[0], out, lse)

    def _start(self, index: int, keys):
        """Sends on the keys of this step. keys: the own ones, which stay, and two buffers."""
        buffers = keys[:1] + [keys[1 + i % 2] for i in range(len(self._steps) - 1)]
        if index + 1 == len(self._steps):
            return NO_SHIFT, buffers[index]
        return self._link.shift(buffers[index + 1], buffers[index]), buffers[index]

    def backward(self, dout, saved):
        q, own, out, lse = saved
        dtype = accumulator_dtype(q.dtype)
        keys = [own] + [torch.empty_like(own) for _ in range(min(2, self._link.size - 1))]
        dq = torch.zeros(q.shape, dtype=dtype, device=q.device)
        arrived, free = own.new_zeros(own.shape, dtype=dtype), own.new_empty(own.shape, dtype=dtype)
        behind = NO_SHIFT
        for index, step in enumerate(self._steps):
            shift, here = self._start(index, keys)
            gradients = None
            if step is not None:
                kernel, queries, some = step
                rows = (q[queries], here[0][some], here[1][some], out[queries], lse[queries])
                dq_part, *gradients = kernel.backward(dout[queries], rows)
                dq[queries] += dq_part
            behind.wait()
            if gradients is not None:
                arrived[0][some] += gradients[0]
                arrived[1][some] += gradients[1]
            if self._link.size > 1:
                behind = self._link.shift(free, arrived)
                arrived, free = free, arrived
            shift.wait()
        behind.wait()
        dk, dv = arrived.to(q.dtype)
        return dq.to(q.dtype), dk, dv


class _Sums:
    """out and lse of keys that come in parts. The first part of all rows is taken as it is."""

    def __init__(self, q, v) -> None:
        self._shape, self._like = (*q.shape[:2], v.shape[2]), q
        self._out = self._lse = None

    def add(self, rows: slice, part, part_lse) -> None:
        if self._out is None:
            self._out, self._lse = self._first(rows, part, part_lse)
        elif self._out.dtype == part.dtype != part_lse.dtype:
            self._out = self._out.to(part_lse.dtype)
            self.add(rows, part, part_lse)
        else:
            merge_on(part.device)(self._out[rows], self._lse[rows], part, part_lse)

    def _first(self, rows, part, part_lse):
        if part.shape == self._shape:
            return part, part_lse
        out = self._like.new_zeros(self._shape, dtype=part_lse.dtype)
        lse = part_lse.new_full(self._shape[:2], float("-inf"))
        out[rows], lse[rows] = part, part_lse
        return out, lse

    def result(self):
        if self._out is None:
            return self._first(slice(0, 0), *self._nothing())
        return self._out.to(self._like.dtype), self._lse

    def _nothing(self):
        none = self._like.new_empty(0, *self._shape[1:])
        return none, none.new_empty(none.shape[:2], dtype=accumulator_dtype(none.dtype))
