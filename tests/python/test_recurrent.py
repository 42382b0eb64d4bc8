# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and convolutions under plans, and the runs that plans come to."""

import pytest
import torch

import recurrent_cases as cases
from magi_attention import Plan, masks, recurrent

SEEDS = range(6)


def test_alone():
    cases.all_agree(None, range(20))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_over_ranks(ranks, size):
    ranks.run(size, cases.all_agree, SEEDS)


def test_differing_plans(ranks):
    ranks.run(2, cases.differing_plans)


@pytest.mark.parametrize("seed", range(40))
def test_runs(seed):
    """Runs hold every row once, follow each other, and come after what a row sees last."""
    plan = cases.random_plan(seed, 1 + seed % 4)
    parents = cases.parents_of(plan)
    ends, rows = set(), []
    runs = [plan.runs(rank) for rank in range(plan.cp_size)]
    for run in (run for of_rank in runs for run in of_rank):
        assert run.parent == parents[run.begin]
        assert all(parents[row] == row - 1 for row in range(run.begin + 1, run.end))
        rows.extend(range(run.begin, run.end))
        ends.add(run.end - 1)
    assert sorted(rows) == list(range(plan.total_seqlen))
    assert all(run.parent in {-1, *ends} for of_rank in runs for run in of_rank)


def bound_plan():
    mask = masks.from_cu_seqlens([0, 5, 12], causal=True)
    sizes = dict(cp_size=1, num_heads_q=2, num_heads_kv=1, head_dim=8)
    return Plan.from_mask(mask, **sizes).bind()


def test_reduced_types():
    """States are float32 where inputs are narrower; the result has the inputs' type."""
    bound, generator = bound_plan(), torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator)
    log_a = -torch.rand(12, 3, generator=generator)
    found = recurrent.rg_lru(bound, x.bfloat16(), log_a.bfloat16())
    wanted = recurrent.rg_lru(bound, x.bfloat16().double(), log_a.bfloat16().double())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted.bfloat16())


def test_refusals():
    bound = bound_plan()
    with pytest.raises(ValueError, match=r"x has shape \[11, 3\]; allowed: \[12, ...\]"):
        recurrent.rg_lru(bound, torch.ones(11, 3), torch.ones(12, 3))
    with pytest.raises(ValueError, match="activation is 'relu'; allowed: None, 'silu'"):
        recurrent.causal_conv1d(bound, torch.ones(12, 3), torch.ones(3, 4), activation="relu")
