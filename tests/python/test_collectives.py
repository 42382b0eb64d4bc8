# SPDX-License-Identifier: Apache-2.0
import pytest

import collective_cases as cases


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("case", [cases.parts, cases.all_to_all, cases.works])
def test_parts_of_ranks(ranks, size, case):
    ranks.run(size, case)


def test_same_groups(ranks):
    ranks.run(4, cases.same_groups)
