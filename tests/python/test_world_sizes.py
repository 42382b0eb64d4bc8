# SPDX-License-Identifier: Apache-2.0
"""The pipeline on 5 to 8 ranks, and on groups within them: a few cases of each kind that
test_pipeline.py runs on fewer.
"""

import pytest

import pipeline_cases as cases
from pipeline_cases import Case


@pytest.mark.parametrize(
    "size, case",
    [
        (5, Case(mask="varlen_causal", rows=83, heads=(8, 8), head_dim=8)),
        (5, Case(mask="four_types", rows=90, degree=4, sinks=2, softcap=3.0, head_dim=8)),
        (6, Case(mask="full", rows=60, degree=0, head_dim=8)),
        (6, Case(mask="empty_rows", rows=64, degree=None, sinks=1, head_dim=8)),
        (7, Case(mask="block_causal_q_overlap", rows=77, degree=None, head_dim=8)),
        (7, Case(mask="small_pieces", rows=97, heads=(8, 8), with_lse_gradient=True, head_dim=8)),
        (8, Case(mask="prefix", rows=100, degree=4, heads=(8, 8), head_dim=8)),
        (8, Case(mask="causal", rows=11, head_dim=8)),  # ranks without a row of the sequence
        (8, Case(mask="bi_causal_q_overlap", rows=128, is_partial_grad=True, head_dim=8)),
        (8, Case(mask="nothing", rows=40, head_dim=8)),
    ],
    ids=lambda value: value.mask if isinstance(value, Case) else str(value),
)
def test_masks(eight_ranks, size, case):
    eight_ranks.run(size, cases.pipeline, case)


@pytest.mark.parametrize("size", [5, 8])
def test_low_precision(eight_ranks, size):
    case = Case(mask="varlen_block_causal", dtype="bfloat16", rows=96, degree=4)
    eight_ranks.run(size, cases.pipeline, case)


def test_same_bits(eight_ranks):
    case = Case(mask="four_types", rows=90, degree=4, dtype="bfloat16", sinks=1)
    eight_ranks.run(7, cases.same_bits, case)


def test_hybrid_masks(eight_ranks):
    eight_ranks.run(6, cases.hybrid, Case(rows=90, head_dim=8))


@pytest.mark.parametrize("rows, uneven", [(67, True), (96, False)])
def test_shards(eight_ranks, rows, uneven):
    eight_ranks.run(8 if uneven else 5, cases.shards, rows, uneven)


@pytest.mark.parametrize("replicas", [2, 4])
def test_data_and_context_parallel(eight_ranks, replicas):
    eight_ranks.run(8, cases.meshes_and_two_groups, Case(rows=80, head_dim=8), replicas)


def test_training_of_replicas(eight_ranks):
    eight_ranks.run(8, cases.training_of_replicas, Case(rows=64, head_dim=8))
