# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that share sequences, and batches dealt out to ranks or to groups of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

from magi_attention.comm.first_call import timeout_of
from magi_attention.comm.group import num_processes
from magi_attention.common._arguments import check_int

Place = tuple[int, int]  # of how many that batches are dealt out to, and which of them this is


def group_of_neighbours(cp_size: int) -> dist.ProcessGroup | None:
    """This process's group of cp_size neighbouring ranks; None in a program of one process.
    Collective. Starts torch.distributed as Trainer would where nothing else has. ValueError unless
    groups of that size hold all processes.
    """
    check_int("cp_size", cp_size, 1)
    world = num_processes()
    if world % cp_size:
        raise ValueError(
            f"cp_size is {cp_size} in a program of {world} processes; allowed: divisors of "
            f"{world}; torchrun --nproc-per-node {cp_size} starts as many"
        )
    if world == 1:
        return None
    if not dist.is_initialized():
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available())
    # torch's own default would be half an hour, whatever the program chose.
    return dist.new_subgroups(cp_size, timeout=timeout_of(dist.group.WORLD))[0]


def in_turns(things: Iterable, count: int) -> Iterator[list]:
    """Lists of `count` one after the other; the last one may be shorter."""
    left = iter(things)
    while found := list(itertools.islice(left, count)):
        yield found


class DealtBatches(Sampler[list[int]]):
    """Every batch to one place, in turns; the last turn is filled up with empty batches, so that
    all places get equally many and no sample twice.
    """

    def __init__(self, batches: Sampler[list[int]], place: Place) -> None:
        # Names by which accelerate replaces a sampler, and Trainer says that each rank has its own.
        self.batch_sampler, self.sampler = batches, getattr(batches, "sampler", None)
        self.num_processes, self.process_index = place
        self.drop_last = getattr(batches, "drop_last", False)

    def __len__(self) -> int:
        whole, left = divmod(len(self.batch_sampler), self.num_processes)
        return whole + (left > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        for turn in in_turns(self.batch_sampler, self.num_processes):
            if len(turn) == self.num_processes or not self.drop_last:
                yield turn[self.process_index] if self.process_index < len(turn) else []


class _DealtStream(IterableDataset):
    """The samples of one place, as DealtBatches deals out those of a dataset without indices."""

    def __init__(self, loader: DataLoader, place: Place) -> None:
        self.dataset, self.batch_size, self.drop_last = (
            loader.dataset, loader.batch_size, loader.drop_last
        )  # fmt: skip
        self.num_places, self.index = place

    def set_epoch(self, epoch: int) -> None:
        """Tells the dataset, where it wants to know."""
        getattr(self.dataset, "set_epoch", lambda epoch: None)(epoch)

    def __len__(self) -> int:
        whole, left = divmod(len(self.dataset), self.num_places * self.batch_size)
        return (whole + (left > 0 and not self.drop_last)) * self.batch_size

    def __iter__(self) -> Iterator[Any]:
        size, begin = self.batch_size, self.index * self.batch_size
        for turn in in_turns(self.dataset, self.num_places * size):
            if len(turn) == self.num_places * size or not self.drop_last:
                yield from turn[begin : begin + size] or [{"input_ids": []}]


def options_of(loader: DataLoader) -> dict[str, Any]:
    """The options that a loader takes over from the one that it replaces."""
    names = ("collate_fn", "num_workers", "pin_memory", "timeout")
    return {name: getattr(loader, name) for name in names}


def deal(loader: DataLoader, cp_group: dist.ProcessGroup | None, is_same_on_ranks: bool):
    """MagiCollator.deal."""
    if num_processes() == 1:
        return loader
    sampler = refuse_dealt(loader)
    place, seed = _agree(cp_group, is_same_on_ranks)
    if isinstance(loader.dataset, IterableDataset):
        stream = _DealtStream(loader, place)
        options = options_of(loader)
        return DataLoader(stream, loader.batch_size, drop_last=loader.drop_last, **options)
    if _is_of_own_order(sampler):
        sampler.generator = torch.Generator().manual_seed(seed)
    batches = DealtBatches(loader.batch_sampler, place)
    return DataLoader(loader.dataset, batch_sampler=batches, **options_of(loader))


def _is_of_own_order(sampler: Any) -> bool:
    """Whether a sampler shuffles by this process's own random numbers."""
    return getattr(sampler, "generator", sampler) is None


def order_alike(sampler: Any) -> None:
    """Has a sampler that shuffles do so alike on all processes. Collective over them if it does."""
    if num_processes() > 1 and _is_of_own_order(sampler):
        sampler.generator = torch.Generator().manual_seed(_agree(None, False)[1])


def refuse_dealt(loader: DataLoader) -> Any:
    """The loader's sampler; ValueError for a loader that deals out already or makes no batches."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if loader.batch_sampler is None and loader.batch_size is None:
        raise ValueError("the loader has batch_size None; allowed: samples of a batch")
    if isinstance(sampler, DistributedSampler):
        raise ValueError(
            "the loader has a DistributedSampler; allowed: a sampler of all samples, which are "
            "dealt out here"
        )
    if getattr(loader.dataset, "_distributed", None) is not None:  # of Hugging Face's datasets
        raise ValueError(
            "the loader has a dataset that split_dataset_by_node has split; allowed: one of all "
            "samples, in one order on all ranks, which are dealt out here"
        )
    return sampler


def _agree(cp_group: dist.ProcessGroup | None, is_same_on_ranks: bool) -> tuple[Place, int]:
    """This process's place, each rank's own or that of its group, and a seed. Collective."""
    first = dist.get_process_group_ranks(cp_group)[0] if is_same_on_ranks else dist.get_rank()
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (first, int(torch.empty((), dtype=torch.int64).random_())))
    places = sorted({first for first, _ in told})
    return (len(places), places.index(first)), told[0][1]
