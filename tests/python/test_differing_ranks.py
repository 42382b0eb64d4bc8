# SPDX-License-Identifier: Apache-2.0
"""Ranks that call with other plans, options or arguments, in what moves rows besides calc_attn."""

import pytest

import differing_cases as cases


@pytest.mark.parametrize("name", cases.CALLS)
def test_other_plans(ranks, name):
    ranks.run(3 if name == "roll" else 2, cases.other_plans, name)


@pytest.mark.parametrize("name", ["undispatch", "roll", "dispatch"])
def test_other_widths(ranks, name):
    ranks.run(2, cases.other_widths, name)


@pytest.mark.parametrize("name", ["undispatch", "roll"])
def test_refused_rows(ranks, name):
    ranks.run(2, cases.refused_rows, name)


def test_compared_on_gpus(ranks):
    ranks.run(2, cases.compared_on_gpus)


def test_chosen_keys(ranks):
    ranks.run(2, cases.other_options_of_chosen_keys)
    ranks.run(2, cases.refused_chosen_keys)
    ranks.run(2, cases.lists_of_blocks_stay_small)
