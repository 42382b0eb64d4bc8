# SPDX-License-Identifier: Apache-2.0
"""Whole pipeline on 1 to 4 ranks over gloo, against dense float64 attention."""

from dataclasses import replace

import pytest

import dense
import pipeline_cases as cases
from pipeline_cases import Case

MASKS = sorted(dense.masks(100))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(ranks, size, mask):
    ranks.run(size, cases.pipeline, Case(mask=mask))


@pytest.mark.parametrize("degree", [0, 1, 4, None])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (4, 1)])
@pytest.mark.parametrize("size", [2, 4])
def test_degrees_and_heads(ranks, size, heads, degree):
    ranks.run(size, cases.pipeline, Case(mask="four_types", heads=heads, degree=degree))


MORE = [{"sinks": 1}, {"with_lse_gradient": True, "mask": "empty_rows"}, {"rows": 151}]


@pytest.mark.parametrize("change", [*cases.OPTIONS, *MORE], ids=str)
def test_options(ranks, change):
    ranks.run(3, cases.pipeline, replace(Case(), **change))


@pytest.mark.parametrize(
    "alg",
    ["MinHeapDispatchAlg", "RandomSelectDispatchAlg", "SequentialDispatchAlg",
     "ZigzagDispatchAlg", "AffinityDispatchAlg", "ThoroughDispatchAlg"],
)  # fmt: skip
def test_placements(ranks, alg):
    ranks.run(4, cases.pipeline, Case(alg=alg, mask="varlen_causal"))


@pytest.mark.parametrize("work, layout", [("queries", "permuted"), ("auto", "contiguous")])
@pytest.mark.parametrize("mask", MASKS)
def test_moving_queries(ranks, mask, work, layout):
    ranks.run(4, cases.pipeline, Case(mask=mask, heads=(8, 8), work=work, layout=layout, sinks=1))


@pytest.mark.parametrize("degree", [0, 2, None])
def test_moving_queries_in_stages(ranks, degree):
    case = Case(mask="varlen_causal", heads=(8, 8), work="queries", degree=degree,
                with_lse_gradient=True)  # fmt: skip
    ranks.run(3, cases.pipeline, case)


def test_what_auto_chooses(ranks):
    case = Case(mask="varlen_causal", rows=600, heads=(8, 8), work="auto", degree=None)
    ranks.run(4, cases.pipeline, case)


@pytest.mark.parametrize("degree", [3, None])
@pytest.mark.parametrize("heads", [(8, 8), (8, 1)])
def test_stages_in_turns(ranks, heads, degree):
    bound = 150 * heads[1] * 2 * 16 * (2 + 4) // 2
    options = dict(heads=heads, degree=degree, max_exchange_bytes=bound, work="keys")
    case = Case(mask="varlen_causal", **options)
    ranks.run(4, cases.stages_in_turns, case)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("head_shares", [2, 4])
def test_shared_heads(ranks, mask, head_shares):
    case = Case(mask=mask, heads=(8, 4), work="heads", head_shares=head_shares, sinks=1,
                with_lse_gradient=True)  # fmt: skip
    ranks.run(4, cases.pipeline, case)


@pytest.mark.parametrize("rows", [101, 110])
@pytest.mark.parametrize("heads", [(64, 8), (4, 4), (8, 1)])
def test_shared_heads_of_uneven_shards(ranks, rows, heads):
    case = Case(rows=rows, heads=heads, uneven=True, work="heads", sinks=2, sink_per_row=True)
    ranks.run(2, cases.pipeline, case)


@pytest.mark.parametrize("rows", [100, 101, 110])
def test_uneven_shards(ranks, rows):
    ranks.run(3, cases.pipeline, Case(rows=rows, uneven=True, alg="SequentialDispatchAlg"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("degree", [0, 1, 4])
def test_low_precision(ranks, dtype, degree):
    case = Case(dtype=dtype, mask="varlen_block_causal", degree=degree)
    ranks.run(4, cases.pipeline, case)


@pytest.mark.parametrize("work", [None, "queries", "heads"])
def test_same_bits(ranks, work):
    case = Case(mask="four_types", degree=4, dtype="bfloat16", sinks=1, heads=(8, 4), work=work)
    ranks.run(4, cases.same_bits, case)


@pytest.mark.parametrize("work", [None, "queries", "heads"])
def test_hybrid_masks_in_order(ranks, work):
    case = Case(rows=90, layout="contiguous", heads=(8, 4), work=work)
    ranks.run(4 if work == "heads" else 3, cases.hybrid, case)


@pytest.mark.parametrize(
    "given", [(64, False), (65, False), (67, True), (cases.IDLE.rows, True, True)], ids=str
)
def test_shards(ranks, given):
    ranks.run(3, cases.shards, *given)


@pytest.mark.parametrize("is_per_row", [False, True])
def test_attention_of_a_rank_without_rows(ranks, is_per_row):
    ranks.run(3, cases.pipeline, replace(cases.IDLE, sinks=2, sink_per_row=is_per_row))


@pytest.mark.parametrize(
    "sizes, case, given",
    [
        ([2], cases.flattened_head_groups, [Case(mask="varlen_causal", heads=(8, 2))]),
        ([3], cases.hybrid, [Case(rows=90)]),
        ([4], cases.gradients_of_shards, [50]),
        ([1, 3], cases.functions_of_bound_plans, [50]),
        ([4], cases.meshes_and_two_groups, [Case(rows=80)]),
        ([1, 2], cases.checkpointing, [Case(rows=70)]),
        ([1, 2], cases.compiled, [Case(rows=70)]),
        ([2], cases.plan_of_one_call, [False]),
        ([2], cases.plan_of_one_call, [True]),
        ([3], cases.reduced_sink_gradients, [Case(rows=60, sinks=2)]),
        ([2], cases.plan_mismatch, []),
    ],
)
def test_cases(ranks, sizes, case, given):
    for size in sizes:
        ranks.run(size, case, *given)


@pytest.mark.parametrize(
    "variables",
    [
        {"MAGI_ATTENTION_PRECISION": "fp64"},
        {"MAGI_ATTENTION_SANITY_CHECK": "1"},
        {"MAGI_ATTENTION_MIN_CHUNKS_PER_RANK": "3"},
        {"MAGI_ATTENTION_KERNEL_BACKEND": "sdpa"},
        {"MAGI_ATTENTION_DETERMINISTIC_MODE": "1", "MAGI_ATTENTION_NATIVE_GRPCOLL": "1"},
    ],
    ids=str,
)
def test_environment(ranks, variables):
    ranks.run(2, cases.environment, variables, cases.pipeline, Case(rows=80))
