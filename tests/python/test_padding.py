# SPDX-License-Identifier: Apache-2.0
"""Rows before the padding alone, as models that know of no padding give them."""

import pytest

import padding_cases as cases
from pipeline_cases import Case


@pytest.mark.parametrize("size, rows", [(1, 383), (1, 1), (1, 50), (2, 383), (3, 17), (4, 150)])
def test_rows_before_the_padding(ranks, size, rows):
    ranks.run(size, cases.without_padding, Case(rows=rows, heads=(4, 2), head_dim=8))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("per_row", [False, True])
def test_sinks(ranks, size, per_row):
    case = Case(rows=131, heads=(4, 2), head_dim=8, sinks=2, sink_per_row=per_row, softcap=5.0)
    ranks.run(size, cases.without_padding, case)


@pytest.mark.parametrize("size", [1, 2])
def test_compiled(ranks, size):
    ranks.run(size, cases.compiled_without_padding, 67)


def test_other_numbers_of_rows(ranks):
    ranks.run(1, cases.wrong_rows)
