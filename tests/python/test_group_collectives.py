# SPDX-License-Identifier: Apache-2.0
import pytest

import group_cases as cases
from magi_attention.comm.primitive.grpcoll._config import GrpCollConfig

SIZES = pytest.mark.parametrize("size", [1, 2, 4])
SEEDS = pytest.mark.parametrize("seed", range(3))


@SIZES
@SEEDS
def test_casts(ranks, size, seed):
    ranks.run(size, cases.casts, seed)


@SIZES
@SEEDS
def test_reduces(ranks, size, seed):
    ranks.run(size, cases.reduces, seed)


@SIZES
def test_reduces_softmax_results(ranks, size):
    ranks.run(size, cases.reduces_softmax_results, 1)


def test_bad_arguments(ranks):
    ranks.run(2, cases.bad_arguments)


def test_default_sizes():
    cast = GrpCollConfig.get_default_group_cast_config
    assert cast(8) == GrpCollConfig(24, 6, 256, 6, 128) == cast(4) != cast(16)
    assert GrpCollConfig.get_default_group_reduce_config(144) == GrpCollConfig(24, 2, 720, 8, 128)
    with pytest.raises(ValueError, match="num_ranks is 0"):
        cast(0)
