# SPDX-License-Identifier: Apache-2.0
"""Groups that torch.distributed has destroyed are let go of, with their threads and descriptors."""

import pytest

import destroyed_cases as cases
from ranks import Ranks


@pytest.fixture(scope="module")
def ranks():
    """Of their own: who makes groups names later ones by count, unlike ranks that did not."""
    started = Ranks(2)
    yield started
    started.stop()


@pytest.mark.parametrize("keeps", [False, True], ids=["keys_dropped", "keys_kept"])
def test_many_groups(ranks, keeps):
    ranks.run(2, cases.many_groups, keeps)


def test_held_in_other_ways(ranks):
    ranks.run(2, cases.held_in_other_ways)


def test_keys_of_living_groups_stay(ranks):
    ranks.run(2, cases.keys_of_living_groups_stay)
