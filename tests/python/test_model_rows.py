# SPDX-License-Identifier: Apache-2.0
"""What models of transformers compute over rows besides attention and sums over tokens."""

import pytest

pytest.importorskip("transformers", minversion="5")

import model_rows_cases as cases


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_balance_of_routers(ranks, model_type):
    """32 rows over 3 ranks: one has rows of padding."""
    ranks.run(3, cases.over_ranks, model_type, {"output_router_logits": True})


@pytest.mark.parametrize("model_type", cases.ROPE)
def test_tables_by_largest_position(ranks, model_type):
    ranks.run(4, cases.over_ranks, model_type, cases.ROPE[model_type])


def test_tables_in_one_graph(ranks):
    ranks.run(2, cases.over_ranks, "phi3", cases.ROPE["phi3"], True)
