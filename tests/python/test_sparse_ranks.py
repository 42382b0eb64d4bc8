# SPDX-License-Identifier: Apache-2.0
"""Sparse attention on 1 to 4 ranks over gloo, against dense float64 attention."""

import json

import pytest
import torch

import sparse_cases as cases
from magi_attention import masks
from magi_attention.functional.sparse_dist_attn import NeededKeys, Run, runs_to_send
from sparse_masks import below_diagonal, counts_of_blocks


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("block", [1, 7])
def test_lists_inside_a_window(ranks, size, block):
    ranks.run(size, cases.chosen_inside_a_window, block)


@pytest.mark.parametrize("size", [2, 4])
def test_shards_of_different_lengths(ranks, size):
    ranks.run(size, cases.chosen_inside_a_window, 1, True)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_keys_that_did_not_come(ranks, size):
    ranks.run(size, cases.keys_that_did_not_come)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_blocks_that_all_ranks_know(ranks, size, is_causal):
    ranks.run(size, cases.known_blocks, is_causal)


@pytest.mark.parametrize("size", [1, 2])
def test_tensors_of_other_shapes(ranks, size):
    ranks.run(size, cases.tensors_of_other_shapes)


@pytest.mark.parametrize("size", [1, 3])
def test_by_a_key(ranks, size):
    ranks.run(size, cases.by_a_key)


def test_runs_to_send():
    """Rows that overlap in the transfers to two ranks; own ones and queries do not count."""
    transfers = [
        [0, 1, 0, 1, 0, 0, 10], [0, 2, 4, 1, 0, 0, 10], [0, 0, 0, 1, 0, 0, 30],
        [0, 1, 20, 2, 0, 10, 5], [1, 0, 0, 1, 0, 0, 7], [0, 2, 0, 1, 1, 0, 9],
    ]  # fmt: skip
    assert runs_to_send(transfers, 0) == [
        Run(0, 4, (1,)), Run(4, 6, (1, 2)), Run(10, 4, (2,)), Run(20, 5, (1,)),
    ]  # fmt: skip
    assert runs_to_send(transfers, 1) == [Run(0, 7, (0,))]
    assert runs_to_send(transfers, 2) == []


def test_plans_that_move_queries_are_refused():
    plan = {"config": {"num_ranks": 2}, "transfers": [[0, 1, 0, 1, 1, 0, 4]]}
    with pytest.raises(NotImplementedError, match="the plan moves queries"):
        NeededKeys(json.dumps(plan), 0, lambda _: [], 8, None)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1), (16, 8), (7, 30), (50, 64)])
def test_masks_of_blocks(sizes, is_causal):
    rows = 50, 64
    num = -(-rows[0] // sizes[0]), -(-rows[1] // sizes[1])
    for share in (0.0, 0.3, 1.0):
        visible = torch.rand(num, generator=torch.Generator().manual_seed(5)) < share
        found = masks.to_matrix(masks.from_blocks(visible, *sizes, *rows, is_causal=is_causal))
        wanted = counts_of_blocks(visible[None], 1, sizes, *rows)[0].bool()
        assert torch.equal(found, wanted & below_diagonal(*rows) if is_causal else wanted)


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ((torch.zeros(2, 2), 4, 4, 8, 8), TypeError, "visible is torch.float32"),
        (([True], 4, 4, 8, 8), TypeError, "visible is list"),
        ((torch.zeros(2, 2).bool(), 4, 4, 8, 9), ValueError, r"\[2, 2\]; allowed: \[2, 3\]"),
        ((torch.zeros(2, 2).bool(), 0, 4, 8, 8), ValueError, "q_block_size is 0"),
    ],
)
def test_bad_masks_of_blocks(arguments, error, match):
    with pytest.raises(error, match=match):
        masks.from_blocks(*arguments)
