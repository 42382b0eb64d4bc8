# SPDX-License-Identifier: Apache-2.0
"""Every tensor argument of public functions in other layouts than row-major ones without gaps."""

import pytest
import torch

import view_cases

ATTENTION = view_cases.attention("cpu", torch.float64, "cpu")
BUILDERS = view_cases.builders()


@pytest.mark.parametrize("name", [*ATTENTION, *BUILDERS])
def test_on_one_device(name):
    view_cases.check(*(ATTENTION | BUILDERS)[name])


@pytest.mark.parametrize("size", [1, 2])
def test_over_ranks(ranks, size):
    ranks.run(size, view_cases.over_ranks)
