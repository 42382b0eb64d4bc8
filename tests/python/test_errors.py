# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of functions that work on a process group."""

import pytest

import error_cases as cases


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("case", [cases.bad_keys, cases.bad_tensors, cases.bad_environment])
def test_bad_arguments(ranks, size, case):
    ranks.run(size, case)


def test_ranks_with_different_cost_files(ranks, tmp_path):
    for rank, rate in enumerate((275e9, 1e9)):
        (tmp_path / f"{rank}.json").write_text(cases.cost_file(bytes_per_second=rate))
    ranks.run(2, cases.different_cost_files, str(tmp_path))


def test_bad_groups(ranks):
    ranks.run(4, cases.bad_groups)


def test_keys_of_other_groups(ranks):
    ranks.run(4, cases.keys_of_other_groups)


def test_destroyed_groups(ranks):
    ranks.run(4, cases.destroyed_groups)


def test_late_ranks(ranks):
    ranks.run(4, cases.late_ranks)
