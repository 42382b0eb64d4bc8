# SPDX-License-Identifier: Apache-2.0
"""Keys: what they hold, when they are found again, older calls."""

import subprocess
import sys

import pytest

import key_cases as cases


@pytest.mark.parametrize("size", [1, 2])
def test_key_cache(ranks, size):
    ranks.run(size, cases.key_cache)


@pytest.mark.parametrize("size", [1, 3])
def test_sizes_of_keys(ranks, size):
    ranks.run(size, cases.padded_keys)
    ranks.run(size, cases.chunk_sizes)


def test_forgotten_arguments(ranks):
    ranks.run(1, cases.forgotten_arguments)


def test_evicted_keys(ranks):
    ranks.run(1, cases.evicted_keys)


@pytest.mark.parametrize("size", [1, 2])
def test_copies_of_keys(ranks, size):
    ranks.run(size, cases.copies_of_keys)


@pytest.mark.parametrize("size", [1, 2])
def test_names_of_equal_keys(ranks, size):
    ranks.run(size, cases.names_of_equal_keys)


def test_deprecated_calls(ranks):
    ranks.run(2, cases.deprecated_calls)


def test_slices_of_a_mesh(ranks):
    ranks.run(4, cases.slices_of_a_mesh)


def test_hierarchical_meshes(ranks):
    ranks.run(4, cases.hierarchical_meshes, (2, 2))


def test_queries_by_node(eight_ranks):
    eight_ranks.run(8, cases.queries_by_node, (2, 4))


def test_heads_by_node(ranks):
    ranks.run(4, cases.heads_by_node, (2, 2))


def test_hierarchical_meshes_of_eight(eight_ranks):
    eight_ranks.run(8, cases.hierarchical_meshes, (2, 4))


def test_groups_of_the_same_ranks(ranks):
    ranks.run(4, cases.groups_of_the_same_ranks)


def test_missing_arguments(ranks):
    ranks.run(1, cases.missing_arguments)


@pytest.mark.parametrize("size", [1, 3])
def test_same_mask_again(ranks, size):
    ranks.run(size, cases.same_mask_again)


def test_sizes_that_change_in_place(ranks):
    ranks.run(2, cases.sizes_that_change_in_place)


@pytest.mark.parametrize("size", [1, 4])
def test_positions_behind_the_mask(ranks, size):
    ranks.run(size, cases.positions_behind_the_mask)


def test_sizes_of_managers(ranks):
    ranks.run(1, cases.sizes_of_managers)


AT_EXIT = """
import atexit, gc, os, tempfile
import torch.distributed as dist

def check():
    assert key.cp_group is None and bound.cp_group is None and bound.rows.cp_group is None
    assert not api.dist_attn_runtime_dict_mgr.keys()
    print("let go")

atexit.register(check)  # runs after those that are registered later
from magi_attention import api
from magi_attention.common import AttnRanges
from magi_attention.comm.primitive.grpcoll import group_cast
import torch

store = os.path.join(tempfile.mkdtemp(), "store")
dist.init_process_group("gloo", init_method="file://" + store, rank=0, world_size=1)
ranges = AttnRanges.from_ranges([(0, 64)])
key = api.magi_attn_flex_key(
    ranges, ranges, "causal", 64, 64, 2, 2, 8, cp_group_or_mesh=dist.group.WORLD
)
bound = api.dist_attn_runtime_dict_mgr[key].bound
x = torch.zeros(2, 3)
group_cast(x, None, [2], [2], [[0]], [0], dist.group.WORLD).wait_post_process()
"""


def test_groups_are_let_go_at_exit():
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, "let go\n"), run.stderr
