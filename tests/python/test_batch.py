# SPDX-License-Identifier: Apache-2.0
"""Plans of batches from Python."""

import pytest
import torch

from magi_attention import masks
from magi_attention.batch import BatchCost, BatchPlan
from magi_attention.training import ModelShape

_LENGTHS = [5, 900, 0, 40, 300, 7]
_HEADS = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 16}


def _plan(**options) -> BatchPlan:
    return BatchPlan.from_lengths(_LENGTHS, num_ranks=4, rows_per_rank=256, **options)


def test_every_row_has_one_rank_and_the_figures_are_those_of_the_parts():
    plan = _plan(num_micro_batches=2)
    assert plan.num_micro_batches == 2 and plan.defects() == ""
    held = [0] * len(_LENGTHS)
    for part in plan.parts:
        held[part.sample] += part.rows
    chunk = plan.chunk_size
    assert all(0 <= rows - n < chunk for rows, n in zip(held, _LENGTHS))
    report = plan.report
    assert report.step_seconds == pytest.approx(2 * max(map(max, report.rank_seconds)))
    assert 1.0 <= report.gap < 2.0
    assert max(map(max, report.rank_rows)) <= 256


def test_a_micro_batch_is_a_plan_over_all_ranks():
    plan = _plan()
    for m in range(plan.num_micro_batches):
        mask = plan.mask(m)
        packed = plan.packed(m)
        assert mask.area == sum(_LENGTHS[i] * (_LENGTHS[i] + 1) // 2 for i, _ in packed)
        made = plan.plan(m, **_HEADS)
        assert made.defects() == "" and made.total_seqlen == mask.rows_q
        window = masks.from_window(mask.rows_q, 3, 0)
        other = plan.plan(m, **_HEADS, mask=window)
        assert other.chunk_ranks == made.chunk_ranks


def test_samples_may_be_trees():
    tree = masks.from_tree([-1, 0, 0], [100, 50, 60])
    plan = BatchPlan.from_masks([tree, tree], num_ranks=2, rows_per_rank=256)
    assert plan.num_micro_batches == 1 and plan.mask(0).area == 2 * tree.area
    text = plan.to_json()
    read = BatchPlan.from_json(text, [tree, tree])
    assert read.plan(0, **_HEADS) == plan.plan(0, **_HEADS)
    with pytest.raises(ValueError, match=r"pairs of sample 0 is .* unless the masks"):
        BatchPlan.from_json(text).plan(0, **_HEADS)
    with pytest.raises(ValueError, match=r"number of masks is 1; allowed: .* 2, one a sample"):
        BatchPlan.from_json(text, [tree])


def test_text_and_picture():
    plan = _plan()
    assert BatchPlan.from_json(plan.to_json()).to_json() == plan.to_json()
    assert plan.show().startswith("<svg")
    assert "gap=1." in repr(plan)


def test_costs_of_a_model_are_those_of_qwen3_8b():
    shape = ModelShape(
        layers=36, hidden=4096, intermediate=12288, heads=32, kv_heads=8, head_dim=128,
        vocabulary=151936,
    )  # fmt: skip
    cost, default = BatchCost.of_model(shape), BatchCost()
    for name in ("flops_per_token", "flops_per_pair", "bytes_per_token"):
        assert getattr(cost, name) == pytest.approx(getattr(default, name), rel=1e-3)


def test_what_cannot_be_is_refused():
    for options, message in (
        ({"num_micro_batches": 1}, "num_micro_batches is 1; allowed: 0 .* or 2 or more"),
        ({"num_micro_batches": 0}, "num_micro_batches is 0"),
        ({"chunk_size": 300}, "chunk_size is 300"),
        ({"cost": BatchCost(bytes_per_second=0)}, "cost.bytes_per_second is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            _plan(**options)


def test_a_sample_that_fits_nowhere_is_named():
    with pytest.raises(ValueError, match=r"sample 1: rows is 1100; .* it needs 5 ranks"):
        BatchPlan.from_lengths([3, 1100], num_ranks=4, rows_per_rank=256)
    with pytest.raises(ValueError, match=r"masks\[0\] has 3 queries and 4 keys"):
        mask = masks.from_matrix(torch.ones(3, 4, dtype=torch.bool))
        BatchPlan.from_masks([mask], num_ranks=1, rows_per_rank=9)
