# SPDX-License-Identifier: Apache-2.0
"""NeMo Automodel's module on this package, over ranks."""

import pytest

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("einops", reason="einops is not installed")
pytest.importorskip("nemo_automodel", reason="nemo-automodel is not installed")

import automodel_cases as cases


@pytest.mark.parametrize("has_ours_before", [False, True], ids=["alone", "beside_ours"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_one_sequence(ranks, size, has_ours_before):
    ranks.run(size, cases.one_sequence, has_ours_before)


@pytest.mark.parametrize("lengths", [(17, 30, 13), (383,), (64, 32, 32)], ids=str)
def test_packed_documents(ranks, lengths):
    ranks.run(1, cases.packed_documents, lengths)


@pytest.mark.parametrize("lengths", [(64, 32, 32), (24, 40, 192)], ids=str)
@pytest.mark.parametrize("size", [2, 4])
def test_packed_documents_over_ranks(ranks, size, lengths):
    """Their labels of padding rows are 0, so that they need rows without padding."""
    ranks.run(size, cases.packed_documents, lengths)


@pytest.mark.parametrize("case", [cases.prefix_tree, cases.images])
def test_one_rank(ranks, case):
    ranks.run(1, case)
