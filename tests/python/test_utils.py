# SPDX-License-Identifier: Apache-2.0
"""Helpers that programs of the original import."""

import random
import typing

import numpy
import pytest
import torch

import dense
from magi_attention import api, utils
from magi_attention.common import AttnRanges, enum, range, ranges
from magi_attention.meta.collection.calc_meta import AttnArg
from ranks import launch


def test_bounds():
    assert utils.seqlens2cu_seqlens([3, 0, 4]) == [0, 3, 3, 7]
    assert utils.cu_seqlens2seqlens([0, 3, 3, 7]) == [3, 0, 4]
    assert utils.seqlens2cu_seqlens([]) == [0]


def test_seeds():
    def draw():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    utils.set_random_seed(3)
    first = draw()
    utils.set_random_seed(3)
    assert draw() == first


def test_dense_masks():
    for mask in dense.masks(20).values():
        q, k, _ = mask.ranges()
        found = utils.make_attn_mask_from_ffa_args(q, k, mask.types, mask.rows_q, mask.rows_k)
        assert torch.equal(found, mask.multiplicity() > 0)
    assert utils.get_attn_mask_from_ffa_args is utils.make_attn_mask_from_ffa_args
    bottom = utils.make_ffa_causal_mask(2, 3, 1, "cpu")
    assert bottom.int().tolist() == [[1, 1, 0], [1, 1, 1]]
    with pytest.raises(ValueError, match="attn_type_idx is 4; allowed: 0 to 3"):
        utils.make_ffa_causal_mask(2, 2, 4)


def test_helpers_are_in_host_memory_without_cuda():
    """The original's default, "cuda", where torch has none."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    assert api.infer_varlen_mask_from_batch(2, 3)[0].device.type == kind
    with pytest.warns(DeprecationWarning):
        assert api.full_attention_to_varlen_attention(2, 3)[0].tolist() == [0, 3, 6]
    assert utils.make_ffa_causal_mask(2, 2).device.type == kind
    assert api.infer_varlen_mask_from_batch(2, 3, device="meta")[0].is_meta


def test_ranges_of_profilers():
    @utils.nvtx.instrument_nvtx
    def twice(x):
        return 2 * x

    with torch.profiler.profile() as profile, utils.nvtx.add_nvtx_event("outer"):
        assert twice(2) == 4
    names = {event.name for event in profile.events()}
    assert "outer" in names and any("twice" in name for name in names)


QUICKSTART = """
import torch
import torch.distributed as dist
from magi_attention.utils import clearup_dist_env, setup_dist_env

(rank, local_rank, world_size, num_nodes, num_local_ranks, world_group, device, seed) = (
    setup_dist_env(base_seed=7, seed_bias=lambda rank: rank)
)
assert (rank, local_rank, world_size, num_nodes, num_local_ranks, seed) == (0, 0, 1, 1, 1, 7)
assert world_group is dist.group.WORLD and torch.initial_seed() == 7
x = torch.zeros(1, device=device)
clearup_dist_env()
assert not dist.is_initialized()
"""


def test_quickstart():
    code, output = launch(QUICKSTART)
    assert code == 0, output


def test_aliases_are_types():
    assert typing.get_args(enum.AttnSinkLayout) == ("sh", "shd", "ssh")
    assert typing.get_args(enum.GroupReduceOp) == ("sum", "avg", "lse")
    assert torch.Tensor in typing.get_args(enum.OutMaybeWithLSE)
    assert range.NaiveRange == tuple[int, int]
    assert typing.get_args(ranges.NaiveRanges) == (tuple[int, int],)
    assert str in typing.get_args(api.GeneralAttnMaskType)


def test_arguments_of_a_call():
    ranges = AttnRanges.from_ranges([(0, 4), (4, 9)])
    found = AttnArg(ranges, ranges, [0, 1])
    assert found.total_area == 16 + 15 and not found.can_skip() and not found.can_skip(is_bwd=True)
    forward, backward = found.to_ffa_args(), found.to_ffa_args(is_bwd=True)
    assert all(torch.equal(forward[name], backward[name]) for name in forward)
    assert AttnArg(ranges, ranges, [0, 1], total_area=5).total_area == 5
    empty = AttnArg(AttnRanges(), AttnRanges(), [])
    assert empty.can_skip() and empty.total_area == 0
    with pytest.raises(ValueError, match="have 2, 2, 1 entries"):
        AttnArg(ranges, ranges, [0])
