# SPDX-License-Identifier: Apache-2.0
"""Keys: what they hold, when they are found again, older calls."""

import pytest

import key_cases as cases


@pytest.mark.parametrize("size", [1, 2])
def test_key_cache(ranks, size):
    ranks.run(size, cases.key_cache)


@pytest.mark.parametrize("size", [1, 3])
def test_sizes_of_keys(ranks, size):
    ranks.run(size, cases.padded_keys)
    ranks.run(size, cases.chunk_sizes)


def test_forgotten_arguments(ranks):
    ranks.run(1, cases.forgotten_arguments)


def test_deprecated_calls(ranks):
    ranks.run(2, cases.deprecated_calls)


def test_hierarchical_meshes(ranks):
    ranks.run(4, cases.hierarchical_meshes)
