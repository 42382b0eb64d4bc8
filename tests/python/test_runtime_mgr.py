# SPDX-License-Identifier: Apache-2.0
import pytest

import runtime_cases as cases

SIZES = pytest.mark.parametrize("size", [1, 3])


@SIZES
def test_managers(ranks, size):
    ranks.run(size, cases.managers, 70)


@SIZES
def test_keys_by_hand(ranks, size):
    ranks.run(size, cases.keys_by_hand)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("rows", [70, 383])
def test_managers_of_fields(ranks, size, rows):
    ranks.run(size, cases.managers_of_fields, rows)


@SIZES
def test_cross_attention(ranks, size):
    ranks.run(size, cases.cross_attention, 47)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_as_the_original_is_called(ranks, size):
    ranks.run(size, cases.as_the_original_is_called)
