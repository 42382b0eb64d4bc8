# SPDX-License-Identifier: Apache-2.0
import pytest

import group_cases as cases

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
