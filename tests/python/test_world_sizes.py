# SPDX-License-Identifier: Apache-2.0
"""The pipeline on 5 to 8 ranks, and on groups within them: a few cases of each kind that
test_pipeline.py runs on fewer.
"""

import json

import pytest
from torch.distributed.device_mesh import init_device_mesh

import dense
import pipeline_cases as cases
from magi_attention import api
from pipeline_cases import Case, make_key
from ranks import over
from test_keys import checked_under


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


@over(8, ranks="eight_ranks")
def test_queries_by_node(group):
    """Moving queries go by the nodes of a 2-D mesh, which the original refuses;
    results and gradients are those of dense attention.
    """
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("inter", "intra"))
    case, mask = Case(rows=512, heads=(8, 8)), dense.masks(512)["bi_causal_q_overlap"]
    plain = make_key(mask, case, mesh)
    names = {"MAGI_ATTENTION_HIERARCHICAL_COMM": "1", "MAGI_ATTENTION_QO_COMM": "1"}
    key, plan = checked_under(names, mask, case, mesh)
    assert key.is_hierarchical_comm_enable and key.is_qo_comm_enable
    hops = {role: hop for role, *_, hop, _ in plan["exchanges"]}
    assert plan["config"]["devices_per_node"] == 4
    assert hops[1] == hops[2] == hops[4] == 1  # queries, results, gradients of queries
    alone = json.loads(api.dist_attn_runtime_dict_mgr[plain].plan.to_json())
    assert not any(hop for *_, hop, _ in alone["exchanges"])
