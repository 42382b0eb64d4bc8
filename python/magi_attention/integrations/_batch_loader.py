# SPDX-License-Identifier: Apache-2.0
"""Global batches of a DataLoader as planned micro-batches: the samples of a step stay, in another
order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Sampler

from magi_attention.batch import BatchPlan
from magi_attention.integrations._dealing import in_turns

Documents = list[dict[str, Any]]  # of one sample
# Reads samples as their documents, and plans them in so many micro-batches.
Planner = Callable[[Sequence[Any], int], tuple[BatchPlan, list[Documents]]]


class GlobalBatch:
    """The samples of a step, by their indices. Read and planned when the first of its micro-batches
    is asked for, so that a training that is resumed skips steps for nothing.
    """

    def __init__(self, indices: list[int], num_micro_batches: int) -> None:
        self.indices, self.num_micro_batches = indices, num_micro_batches
        self._made: tuple[BatchPlan, list[Documents]] | None = None

    def planned(self, dataset: Any, planner: Planner) -> tuple[BatchPlan, list[Documents]]:
        """The plan, and documents of each sample; an error names one by the dataset's index."""
        if self._made is None:
            samples = [dataset[i] for i in self.indices]
            try:
                self._made = planner(samples, self.num_micro_batches)
            except ValueError as error:
                place = re.match(r"sample (\d+)", str(error))
                if place is None:
                    raise
                name = f"sample {self.indices[int(place[1])]} of the dataset"
                raise ValueError(name + str(error)[place.end() :]) from None
        return self._made


class Ticket(NamedTuple):
    """A stand-in for a micro-batch where a sampler gives indices."""

    batch: GlobalBatch
    micro_batch: int


class PlannedMicroBatch(NamedTuple):
    """The samples of a ticket, and their plan."""

    plan: BatchPlan
    micro_batch: int
    samples: list[Documents]  # of the whole step


class PlannedDataset(Dataset):
    """A dataset that is asked for micro-batches."""

    def __init__(self, dataset: Any, planner: Planner) -> None:
        self.dataset, self._planner = dataset, planner

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, ticket: Ticket) -> PlannedMicroBatch:
        plan, samples = ticket.batch.planned(self.dataset, self._planner)
        return PlannedMicroBatch(plan, ticket.micro_batch, samples)


class MicroBatches(Sampler[list[Ticket]]):
    """Batches of a batch sampler, num_ranks for each micro-batch and num_micro_batches of those for
    each step, as tickets of the step's micro-batches. The last step may have fewer.
    """

    def __init__(self, batches: Sampler[list[int]], num_ranks: int, num_micro_batches: int) -> None:
        # Names by which accelerate replaces a sampler.
        self.batch_sampler, self.sampler = batches, getattr(batches, "sampler", None)
        self.drop_last = getattr(batches, "drop_last", False)
        self.num_ranks, self.num_micro_batches = num_ranks, num_micro_batches

    def __len__(self) -> int:
        whole, left = divmod(len(self.batch_sampler), self.num_ranks)
        return whole + (left > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[Ticket]]:
        for turn in in_turns(self.batch_sampler, self.num_ranks * self.num_micro_batches):
            whole, left = divmod(len(turn), self.num_ranks)
            count = whole + (left > 0 and not self.drop_last)
            kept = turn[: count * self.num_ranks]
            batch = GlobalBatch([index for indices in kept for index in indices], count)
            for micro_batch in range(count):
                yield [Ticket(batch, micro_batch)]
