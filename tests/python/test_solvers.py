# SPDX-License-Identifier: Apache-2.0
"""Placement and overlap over jobs of the caller's own."""

import itertools

import pytest

from magi_attention.common import AttnRange, AttnRanges
from magi_attention.meta.solver import dispatch_solver as solver
from magi_attention.meta.solver.dispatch_solver import DispatchData, DispatchJob, DispatchSolver
from magi_attention.meta.solver.overlap_solver import (
    GreedyOverlapAlg,
    OverlapSolver,
    OverlapStageCost,
    UniformOverlapAlg,
)

PLACING = [
    solver.BSDispatchAlg(),
    solver.MinHeapDispatchAlg(),
    solver.BTPDispatchAlg(),
    solver.ToppHeapDispatchAlg(top_p=0.5),
    solver.RandomSelectDispatchAlg(),
    solver.SequentialDispatchAlg(),
    solver.BatchToppHeapDispatchAlg(top_p=0.5, num_of_select_chunk=2),
    solver.SortedSequentialSelectAlg(allocation_ratio=0.5),
]


def solve(alg, workloads, buckets, affinities=None, sample_areas=None):
    data = DispatchData(DispatchJob.from_job_list(workloads, affinities), buckets, sample_areas)
    return DispatchSolver(alg).solve(data)


def least_load(workloads, buckets, room):
    """By trying everything."""
    best = float("inf")
    for choice in itertools.product(range(buckets), repeat=len(workloads)):
        loads = [sum(w for w, c in zip(workloads, choice) if c == b) for b in range(buckets)]
        if max(choice.count(b) for b in range(buckets)) <= room:
            best = min(best, max(loads))
    return best


@pytest.mark.parametrize("alg", PLACING, ids=lambda alg: alg.type.value)
@pytest.mark.parametrize("count, buckets", [(12, 4), (13, 4), (3, 5), (0, 2), (7, 1)])
def test_every_job_has_one_bucket(alg, count, buckets, rng):
    workloads = [rng.randrange(100) for _ in range(count)]
    ranges = [AttnRanges.from_ranges([(i, i + 5)]) for i in range(count)]
    affinities = [solver.IOUAffinity.from_ranges(r) for r in ranges]
    if isinstance(alg, solver.SortedSequentialSelectAlg):
        affinities = [solver.SampleIDAffinity.from_list([i // 3]) for i in range(count)]
    found = solve(alg, workloads, buckets, affinities)
    assert found == solve(alg, workloads, buckets, affinities)
    placed = sorted(job for part in found.bucket_partitions for job in part)
    assert placed == list(range(count)) and len(found.bucket_partitions) == buckets
    loads = [sum(workloads[job] for job in part) for part in found.bucket_partitions]
    assert found.minimax_workload == max(loads)
    if alg.is_equal_num_workloads:
        assert max(len(part) for part in found.bucket_partitions) <= -(-count // buckets)


def test_exact_algorithms(rng):
    for _ in range(6):
        buckets = rng.randint(1, 3)
        workloads = [rng.randrange(1, 30) for _ in range(rng.randint(1, 7))]
        free = least_load(workloads, buckets, len(workloads))
        equal = least_load(workloads, buckets, -(-len(workloads) // buckets))
        assert solve(solver.BSDispatchAlg(), workloads, buckets).minimax_workload == free
        assert solve(solver.BTPDispatchAlg(), workloads, buckets).minimax_workload == equal
        value = solve(solver.DPDispatchAlg(), workloads, buckets)
        assert value.minimax_workload == free and value.bucket_partitions == []
        bound = solve(solver.LBDispatchAlg(), workloads, buckets)
        assert bound.minimax_workload == sum(workloads) / buckets
        assert bound.bucket_partitions == []


def test_sequential_gives_the_first_one_more():
    alg = solver.SequentialDispatchAlg()
    assert solve(alg, [1] * 5, 2).bucket_partitions == [[0, 1, 2], [3, 4]]
    assert not alg.is_equal_num_workloads
    assert solver.RandomSelectDispatchAlg().is_equal_num_workloads


def test_heaviest_first():
    found = solve(solver.MinHeapDispatchAlg(), [2, 7, 4, 6], 2)
    assert found.bucket_partitions == [[1, 0], [3, 2]]


def test_min_heap_takes_the_later_of_equals():
    found = solve(solver.MinHeapDispatchAlg(), [1, 1, 1, 1], 2)
    assert found.bucket_partitions == [[3, 1], [2, 0]]


def test_topp_heap_takes_the_earlier_of_equals():
    affinities = [solver.IOUAffinity.from_ranges([AttnRange(i, i + 1)]) for i in range(4)]
    for alg in (solver.ToppHeapDispatchAlg(), solver.BatchToppHeapDispatchAlg()):
        found = solve(alg, [1, 1, 1, 1], 2, affinities)
        assert found.bucket_partitions == [[0, 2], [1, 3]]


def test_affinity_keeps_jobs_together():
    """Equal loads: candidates are all buckets, so jobs that read the same keys meet."""
    ranges = [[(0, 9)], [(50, 59)], [(0, 9)], [(50, 59)]]
    affinities = [solver.IOUAffinity.from_ranges(AttnRanges.from_ranges(r)) for r in ranges]
    together = solve(solver.ToppHeapDispatchAlg(top_p=1.0), [1] * 4, 2, affinities)
    assert sorted(together.bucket_partitions) == [[0, 2], [1, 3]]


def test_samples_in_runs():
    affinities = [solver.SampleIDAffinity.from_list([i // 4]) for i in range(8)]
    alg = solver.SortedSequentialSelectAlg()
    found = solve(alg, [1] * 8, 2, affinities, sample_areas=[3, 9])
    assert found.bucket_partitions == [[7, 6, 5, 4], [3, 2, 1, 0]]
    alg = solver.SortedSequentialSelectAlg(allocation_ratio=0.0)  # one at a time
    found = solve(alg, [1] * 8, 2, affinities, sample_areas=[3, 9])
    assert found.bucket_partitions == [[7, 5, 3, 1], [6, 4, 2, 0]]
    with pytest.raises(ValueError, match="sample_areas has 1 entries"):
        solve(alg, [1] * 8, 2, affinities, sample_areas=[3])


def test_sample_affinities():
    a = solver.SampleIDAffinity.from_list([3, 3, 5])
    b = solver.SampleIDAffinity()
    assert b.is_empty() and b.num_sample_ids() == 0
    b.add_sample_id(5)
    assert a.get_count(3) == 2 and a.get_count(4) == 0
    assert a.get_sample_id_by() == 3 and a.get_sample_id_by("min_count") == 5
    assert a.num_sample_ids() == 2 and a.num_sample_ids(distinct=False) == 3
    assert a.distance_to(b) == 0 and b.distance_to(a) == -1  # of the sample that self has most of
    b.update(a)
    assert b.get_count(5) == 2 and a.get_count(5) == 1 and a.distance_to(b) == -2
    assert b.get_sample_id_by() == b.get_sample_id_by("min_count") == 5  # the one added first
    assert solver.SampleIDAffinity.from_list([7, 2]).get_sample_id_by() == 7
    with pytest.raises(ValueError, match="mode is 'x'"):
        a.get_sample_id_by("x")
    with pytest.raises(ValueError, match="empty"):
        solver.SampleIDAffinity().get_sample_id_by()


def test_range_affinities():
    a = solver.IOUAffinity.from_ranges([AttnRange(0, 10), AttnRange(5, 20)])
    near, far = solver.IOUAffinity(), solver.IOUAffinity()
    near.append(AttnRange(18, 30))
    far.extend(AttnRanges.from_ranges([(40, 50), (60, 70)]))
    assert a.distance_to(near) == -2 and a.distance_to(far) == 0
    assert a.get_closest_affinity_idx([far, near]) == 1
    assert a.get_farthest_affinity_idx([near, far]) == 1
    assert min([far, near], key=a.make_cmp_key()) is near
    far.update(a)
    assert a.distance_to(far) == -30  # rows 5 to 9 are twice in each: three beyond the first
    assert far.iou_ranges.total_seqlen == 45
    with pytest.raises(ValueError, match="others is empty"):
        a.get_closest_affinity_idx([])


class TestOverlap:
    COSTS = [OverlapStageCost(0, 5), *(OverlapStageCost(2, 3) for _ in range(4))]

    def test_given_degree(self):
        solver_of = OverlapSolver(UniformOverlapAlg())
        found, every = solver_of.solve(self.COSTS, overlap_degree=2)
        assert every == {2: found} and solver_of.best_solution is found
        assert found.overlap_degree == 2 and found.partitions == [[0, 1, 2], [3, 4]]
        assert found.overall_cost == max(4, 5) + max(4, 6) + 6

    def test_more_stages_than_pieces(self):
        found, _ = OverlapSolver(UniformOverlapAlg()).solve(self.COSTS[:2], overlap_degree=3)
        assert found.overlap_degree == 3 and found.partitions == [[0, 1], [], []]
        assert found.overall_cost == 5 + 3
        alone, _ = OverlapSolver(UniformOverlapAlg()).solve(self.COSTS[:1], overlap_degree=2)
        assert alone.partitions == [[0], []] and alone.overall_cost == 5

    def test_chosen_degree(self):
        best, every = OverlapSolver(UniformOverlapAlg()).solve(self.COSTS)
        assert sorted(every) == [1, 2, 3, 4, 5] and best is every[best.overlap_degree]
        lowest = min(round(found.overall_cost) for found in every.values())
        assert best.overlap_degree == min(
            degree for degree, found in every.items() if round(found.overall_cost) == lowest
        )
        best, every = OverlapSolver(UniformOverlapAlg()).solve(self.COSTS, dynamic_max_degree=1)
        assert list(every) == [1] and best.overlap_degree == 1

    def test_shuffled_pieces(self):
        shuffled = OverlapSolver(UniformOverlapAlg(random_costs=True, random_seed=3))
        found, _ = shuffled.solve(self.COSTS, 2)
        assert found == shuffled.solve(self.COSTS, 2)[0] and found.partitions[0][0] == 0
        assert sorted(itertools.chain(*found.partitions)) == [0, 1, 2, 3, 4]

    def test_comparison_and_errors(self):
        assert OverlapSolver(UniformOverlapAlg()) == OverlapSolver(UniformOverlapAlg())
        assert OverlapSolver(UniformOverlapAlg()) != OverlapSolver(UniformOverlapAlg(random_seed=1))
        with pytest.raises(NotImplementedError, match="GreedyOverlapAlg"):
            OverlapSolver(GreedyOverlapAlg())
        with pytest.raises(TypeError, match="alg is a str"):
            OverlapSolver("uniform")
        with pytest.raises(ValueError, match="stage_costs is empty"):
            OverlapSolver(UniformOverlapAlg()).solve([])
        with pytest.raises(ValueError, match="comm_cost is 1; allowed: 0"):
            OverlapSolver(UniformOverlapAlg()).solve([OverlapStageCost(1, 1)])
        with pytest.raises(ValueError, match="calc_cost is -1"):
            OverlapStageCost(0, -1)
        with pytest.raises(ValueError, match="overlap_degree is 0"):
            OverlapSolver(UniformOverlapAlg()).solve(self.COSTS, 0)


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda: DispatchSolver("min_heap"), TypeError, "alg is a str"),
        (lambda: DispatchSolver(solver.AutoDispatchAlg()), ValueError, "alg is auto; allowed"),
        (lambda: DispatchData([], 0), ValueError, "num_buckets is 0"),
        (lambda: DispatchData([DispatchJob(0, -1.0)], 1), ValueError, "workload is -1.0"),
        (lambda: DispatchJob.from_job_list([1, 2], []), ValueError, "affinities has 0 entries"),
    ],
)
def test_bad_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make()
