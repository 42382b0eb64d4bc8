# SPDX-License-Identifier: Apache-2.0
"""What makes two jobs of a placement belong together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from magi_attention.common.range import AttnRange
from magi_attention.common.ranges import AttnRanges


class BaseDispatchAffinity(ABC):
    """A job's affinity, or that of all jobs in a bucket. A subclass with a constructor without
    arguments works with every algorithm that considers affinities.
    """

    @abstractmethod
    def distance_to(self, other: BaseDispatchAffinity) -> float:
        """How little self and other have in common; smaller is closer."""

    @abstractmethod
    def update(self, other: BaseDispatchAffinity) -> None:
        """Adds what other holds, in place."""

    def make_cmp_key(self) -> Callable[[BaseDispatchAffinity], float]:
        """A key for min() and sorted() that puts what is closest to self first."""
        return self.distance_to

    def get_closest_affinity_idx(self, others: Sequence[BaseDispatchAffinity]) -> int:
        """Index of the one closest to self, the first among equals; ValueError for none."""
        return _index_of(min, self, others)

    def get_farthest_affinity_idx(self, others: Sequence[BaseDispatchAffinity]) -> int:
        """Index of the one farthest from self, the first among equals; ValueError for none."""
        return _index_of(max, self, others)


def _index_of(choose, affinity: BaseDispatchAffinity, others: Sequence) -> int:
    if not others:
        raise ValueError("others is empty; allowed: at least one affinity")
    key = affinity.make_cmp_key()
    return choose(range(len(others)), key=lambda index: key(others[index]))


class SampleIDAffinity(BaseDispatchAffinity):
    """How many rows (or whatever is counted) of each sample a job holds. Closer: more of the sample
    that it holds most of.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    @staticmethod
    def from_list(ids: Iterable[int]) -> SampleIDAffinity:
        """One count for every entry of ids."""
        made = SampleIDAffinity()
        made._counts.update(ids)
        return made

    def add_sample_id(self, sample_id: int) -> None:
        """Counts sample_id once more."""
        self._counts[sample_id] += 1

    def get_count(self, sample_id: int) -> int:
        """How often sample_id was counted."""
        return self._counts[sample_id]

    def get_sample_id_by(self, mode: str = "max_count") -> int:
        """The sample counted most ("max_count") or least ("min_count") often, the one added first
        among equals. ValueError for an empty affinity and for other modes.
        """
        if mode not in ("max_count", "min_count"):
            raise ValueError(f'mode is {mode!r}; allowed: "max_count", "min_count"')
        if not self._counts:
            raise ValueError("the affinity is empty; allowed: at least one sample")
        choose = max if mode == "max_count" else min
        return choose(self._counts, key=self._counts.__getitem__)

    def num_sample_ids(self, distinct: bool = True) -> int:
        """Number of samples, or with distinct=False the sum of their counts."""
        return len(self._counts) if distinct else self._counts.total()

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self._counts

    def distance_to(self, other: SampleIDAffinity) -> float:
        """Minus how often other counts the sample that self counts most. ValueError for an empty
        self.
        """
        return -float(other._counts[self.get_sample_id_by("max_count")])

    def update(self, other: SampleIDAffinity) -> None:
        """Adds the counts of other, in place."""
        self._counts.update(other._counts)


class IOUAffinity(BaseDispatchAffinity):
    """The keys that a job reads, in ranges, iou_ranges. Closer: more keys in common."""

    def __init__(self) -> None:
        self.iou_ranges = AttnRanges()

    def append(self, attn_range: AttnRange) -> None:
        """Adds the keys of one range."""
        self.iou_ranges.append(attn_range.clone())

    def extend(self, attn_ranges: Iterable[AttnRange]) -> None:
        """Adds the keys of ranges."""
        for attn_range in attn_ranges:
            self.append(attn_range)

    @staticmethod
    def from_ranges(ranges: Iterable[AttnRange]) -> IOUAffinity:
        """The keys of ranges; they may overlap."""
        made = IOUAffinity()
        made.extend(ranges)
        return made

    def distance_to(self, other: IOUAffinity) -> float:
        """Minus AttnRanges.intersect_size_with: the keys that both hold."""
        return -float(self.iou_ranges.intersect_size_with(other.iou_ranges))

    def update(self, other: IOUAffinity) -> None:
        """Adds the keys of other, in place."""
        self.extend(other.iou_ranges)
