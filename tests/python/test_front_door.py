# SPDX-License-Identifier: Apache-2.0
"""The names that new code uses: attention, Plan and its options in words."""

import pytest
import torch

import magi_attention
from dense import Mask as DenseMask
from dense import attention as dense_attention
from magi_attention import Plan, attention, masks
from magi_attention.config import DispatchConfig, DistAttnConfig, OverlapConfig, ThoroughDispatchAlg

SIZES = {"cp_size": 4, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64}


def qkv(rows=40):
    random = torch.Generator().manual_seed(3)
    return [
        torch.randn(rows, heads, 16, generator=random, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2)
    ]


def dense(mask):
    """The same mask for the dense oracle, by its typed slices."""
    q_ranges, k_ranges, types = (tensor.tolist() for tensor in mask.tensors())
    return DenseMask(q_ranges, k_ranges, types, mask.rows_q, mask.rows_k)


def test_dir_shows_own_names_alone():
    shown = {name for name in dir(magi_attention) if not name.startswith("_")}
    assert shown == {
        "BoundPlan", "Plan", "attention", "backends", "errors", "masks", "trace",
        "training", "version",
    }  # fmt: skip
    assert all(hasattr(magi_attention, name) for name in magi_attention.__all__)
    assert magi_attention.__all__[0] == "BoundPlan"


@pytest.mark.parametrize(
    "mask", ["full", "causal", masks.from_cu_seqlens([0, 13, 40]), masks.from_window(40, 5, 0)]
)
def test_attention_is_that_of_the_mask(mask):
    q, k, v = qkv()
    out, lse = attention(q, k, v, mask, return_lse=True)
    if isinstance(mask, str):
        mask = masks.from_window(40, -1, -1 if mask == "full" else 0)
    expected, expected_lse, _ = dense_attention(q, k, v, dense(mask))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for found, right in zip(gradients, wanted):
        torch.testing.assert_close(found, right)


def test_a_compiled_call_follows_its_mask():
    q, k, v = qkv()
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    for bounds in ([0, 13, 40], [0, 20, 40]):
        mask = masks.from_cu_seqlens(bounds)
        assert torch.equal(compiled(q, k, v, mask), attention(q, k, v, mask))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("causl", "mask is 'causl'; allowed: full, causal"),
        (None, "mask is a NoneType; allowed: a Mask of magi_attention.masks, 'full' or 'causal'"),
        (masks.from_window(39, 1, 0), "mask has 39 queries and 39 keys; allowed: 40 and 40"),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask, words):
    with pytest.raises((TypeError, ValueError), match=words):
        attention(*qkv(), mask)


def test_words_are_the_options_of_the_configuration():
    mask = masks.from_cu_seqlens([0, 3000, 8192])
    config = DistAttnConfig(
        DispatchConfig(alg=ThoroughDispatchAlg()), OverlapConfig(degree=2), work="queries"
    )
    plan = Plan.from_mask(mask, **SIZES, placement="thorough", overlap=2, work="queries")
    assert plan == Plan.from_mask(mask, **SIZES, config=config)
    ranges = mask.ranges()
    assert plan == Plan.from_ranges(*ranges, 8192, **SIZES, config=config)
    in_order = Plan.from_mask(mask, **SIZES, placement="contiguous")
    assert in_order.chunk_ranks == sorted(in_order.chunk_ranks)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"placement": "best"}, "placement is 'best'; allowed: auto, thorough, affinity"),
        ({"overlap": -1}, "overlap is -1; allowed: 0 or more"),
        ({"work": "rows"}, "work is 'rows'; allowed: keys, queries, auto, heads"),
        ({"work": "keys", "config": DistAttnConfig()}, "work is 'keys' beside config; allowed"),
        ({"config": 3}, "config is a int; allowed: DistAttnConfig, or None"),
    ],
)
def test_words_that_are_not_allowed_are_refused(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Plan.from_mask(masks.from_window(4096, -1, 0), **SIZES, **options)


def test_runs_are_those_of_the_rows_and_have_a_bound():
    mask = masks.from_cu_seqlens([0, 700, 2000, 2048])
    free = Plan.from_mask(mask, placement="zigzag", **SIZES)
    first, *_ = free.runs(0)
    assert first == (0, first.end, -1) and first.parent == -1
    for plan in (free, Plan.from_mask(mask, config=_with_max_runs(1), **SIZES)):
        owner = {row: rank for rank in range(4) for row in plan.position_ids(rank)}
        runs = [plan.runs(rank) for rank in range(4)]
        rows = [[row for run in of_rank for row in range(*run[:2])] for of_rank in runs]
        assert rows == [plan.position_ids(rank) for rank in range(4)]
        assert all(run.parent in (-1, run.begin - 1) for of_rank in runs for run in of_rank)
        after_others = [
            sum(run.parent >= 0 and owner[run.parent] != rank for run in runs[rank])
            for rank in range(4)
        ]
        assert plan.report.rank_runs == tuple(after_others)
    assert max(free.report.rank_runs) == 2 and max(plan.report.rank_runs) == 1
    with pytest.raises(ValueError, match="max_runs is 1; allowed: 2 or more"):
        Plan.from_mask(mask, config=_with_max_runs(1), on=free, **SIZES)
    with pytest.raises(ValueError, match="rank is 4; allowed: 0 to 3"):
        free.runs(4)


def _with_max_runs(count):
    return DistAttnConfig(DispatchConfig(max_runs=count))
