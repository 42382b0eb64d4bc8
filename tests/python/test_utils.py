# SPDX-License-Identifier: Apache-2.0
"""Helpers that programs of the original import."""

import random
import subprocess
import sys
import typing

import numpy
import pytest
import torch

import dense
from magi_attention import utils
from magi_attention.common import AttnRanges, enum, range, ranges
from magi_attention.meta.collection.calc_meta import AttnArg


def test_lists():
    assert utils.seqlens2cu_seqlens([3, 0, 4]) == [0, 3, 3, 7]
    assert utils.cu_seqlens2seqlens([0, 3, 3, 7]) == [3, 0, 4]
    assert utils.flatten_nested_list([1, [2, (3, [])], 4]) == [1, 2, 3, 4]
    assert utils.perm_idxs2unperm_idxs([2, 0, 1]) == [1, 2, 0]
    assert utils.wrap_to_list((1, 2)) == [1, 2] and utils.wrap_to_list(5, 3) == [5, 5, 5]
    assert utils.transpose_matrix([[1, 2], [3, 4], [5, 6]]) == [[1, 3, 5], [2, 4, 6]]
    assert utils.argmin([3, 1, 1]) == 1 and utils.argmax([3, 1, 3]) == 0
    assert utils.argsort([3, 1, 2], key=lambda x: -x) == [0, 2, 1]
    assert utils.ceil_div(7, 2) == 4 and utils.ceil_div(6, 2) == 3
    assert utils.is_list_value_all([1, 1], 1) and not utils.is_list_value_all([1, 2], 1)
    assert utils.is_list_value_all([4, 4], just_same=True) and not utils.is_list_value_all([], 1)
    assert utils.is_list_value_any([1, 2], 2) and utils.is_list_value_any([], 2, allow_empty=True)
    assert utils.is_list_type_all([1, 2], int) and not utils.is_list_type_all([1, "a"], int)
    assert utils.is_list_type_all([1, 2], just_same=True)


def test_lists_as_the_original_tells():
    """Its own tests name these results and errors."""
    assert utils.perm_idxs2unperm_idxs([3, 1, 0, 2]) == [2, 1, 3, 0]
    assert utils.perm_idxs2unperm_idxs([]) == []
    for wrong in ([1, 2, 3], [1, 0, 3]):
        with pytest.raises(IndexError):
            utils.perm_idxs2unperm_idxs(wrong)
    for holds in (utils.is_list_value_all, utils.is_list_value_any, utils.is_list_type_all):
        assert not holds([], 1, just_same=True)
        assert holds([], 1, just_same=True, allow_empty=True)
        with pytest.raises(AssertionError, match="with just_same; allowed: None"):
            holds([1, 2], 1, just_same=True)


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: utils.transpose_matrix([]), "matrix is empty"),
        (lambda: utils.transpose_matrix([[1], [1, 2]]), "rows of lengths"),
        (lambda: utils.make_ffa_causal_mask(2, 2, 4), "attn_type_idx is 4; allowed: 0 to 3"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_numbers():
    half, wide = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float64)
    assert utils.to_higher_fp_dtype(half, torch.float32).dtype == torch.float32
    assert utils.to_higher_fp_dtype(wide, torch.float32) is wide
    assert utils.is_fp_dtype_at_least(wide, torch.float32)
    assert utils.max_fp_dtype(torch.bfloat16, torch.float32, torch.float16) == torch.float32
    assert utils.str2seed("a") == utils.str2seed("a") != utils.str2seed("b")
    assert 0 <= utils.str2seed("anything") < 2**32


def test_seeds_inside_leave_the_outside_alone():
    def draw():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    utils.set_random_seed(3)
    wanted = draw(), draw()
    utils.set_random_seed(3)
    first = draw()
    with utils.sync_rng(3):
        assert draw() == wanted[0]
    assert (first, draw()) == wanted


def test_costs():
    assert utils.get_calc_cost_factor(8, 128, 1000.0, 0.5, 1.0) == 4 * 8 * 128 / 500
    assert utils.get_calc_cost_factor(8, 128, 1.0, 1.0, 1.0, is_fwd=False) == 2.5 * 4 * 8 * 128
    assert utils.get_comm_cost_factor(2, 64, 100.0, 0.5, 0.5, 1.0) == 2 * 2 * 64 / 25
    assert utils.get_a2a_corr_factor(4) == 0.75 and utils.get_a2a_corr_factor(1) == 1.0


def test_dense_masks():
    for mask in dense.masks(20).values():
        q, k, _ = mask.ranges()
        found = utils.make_attn_mask_from_ffa_args(q, k, mask.types, mask.rows_q, mask.rows_k)
        assert torch.equal(found, mask.multiplicity() > 0)
    assert utils.get_attn_mask_from_ffa_args is utils.make_attn_mask_from_ffa_args
    bottom = utils.make_ffa_causal_mask(2, 3, 1, "cpu")
    assert bottom.int().tolist() == [[1, 1, 0], [1, 1, 1]]


def test_helpers_are_in_host_memory_without_cuda():
    """The original's default, "cuda", where torch has none."""
    from magi_attention import api

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
from magi_attention.utils import clearup_dist_env, rprint_rank, setup_dist_env, write_rank

(rank, local_rank, world_size, num_nodes, num_local_ranks, world_group, device, seed) = (
    setup_dist_env(base_seed=7, seed_bias=lambda rank: rank)
)
assert (rank, local_rank, world_size, num_nodes, num_local_ranks, seed) == (0, 0, 1, 1, 1, 7)
assert world_group is dist.group.WORLD and torch.initial_seed() == 7
x = torch.zeros(1, device=device)
rprint_rank("shown")
rprint_rank("hidden", rank=1)
write_rank("written", "out.txt", rank=0)
clearup_dist_env()
assert not dist.is_initialized()
"""


def test_quickstart(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", QUICKSTART], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "rank=0" in run.stdout and "shown" in run.stdout and "hidden" not in run.stdout
    assert "written" in (tmp_path / "out.txt").read_text()


def test_aliases_are_types():
    from magi_attention.api import GeneralAttnMaskType

    assert typing.get_args(enum.AttnSinkLayout) == ("sh", "shd", "ssh")
    assert typing.get_args(enum.GroupReduceOp) == ("sum", "avg", "lse")
    assert torch.Tensor in typing.get_args(enum.OutMaybeWithLSE)
    assert range.NaiveRange == tuple[int, int]
    assert typing.get_args(ranges.NaiveRanges) == (tuple[int, int],)
    assert str in typing.get_args(GeneralAttnMaskType)


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
