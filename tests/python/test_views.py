# SPDX-License-Identifier: Apache-2.0
"""Every tensor argument of public functions in other layouts than row-major ones without gaps."""

import pytest
import torch

import view_cases
from magi_attention import masks

ATTENTION = view_cases.attention("cpu", torch.float64, "cpu")
BUILDERS = view_cases.builders() | view_cases.block_tables()


@pytest.mark.parametrize("name", [*ATTENTION, *BUILDERS])
def test_on_one_device(name):
    view_cases.check(*(ATTENTION | BUILDERS)[name])


LISTED = (
    "cu_seqlens", "ids", "prefixes", "packed", "ends", "flashmask", "intervals", "tree", "inferred",
)  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_lists_under_another_default_device(name):
    call, tensors = BUILDERS[name]
    given = {argument: tensor.tolist() for argument, tensor in tensors.items()}
    wanted = view_cases.flat(call(**tensors))
    with torch.device("meta"):
        made = (call(**given), call(**tensors))
    for found in made:
        assert all(torch.equal(*pair) for pair in zip(view_cases.flat(found), wanted, strict=True))


FORMS = (
    "cu_seqlens", "document_ids", "prefix_lm", "packed_seq_params", "tree", "flashmask", "matrix",
    "interval_ends", "window",
)  # fmt: skip


def test_forms_under_another_default_device():
    wanted = masks.from_window(8, -1, 0)
    with torch.device("meta"):
        assert masks.from_mask_mod(lambda batch, head, q, k: q >= k, 8, 8) == wanted
        assert masks.from_block_mask(masks.to_block_mask(wanted, 4, "cpu")) == wanted
        _, tree = masks.from_token_ids([[1, 2], [1, 3]])
        assert tree.rows_of(1).tolist() == [0, 2]
        for form in FORMS:
            getattr(masks, f"to_{form}")(wanted)
    empty = masks.from_window(0, -1, 0)
    with torch.device("meta"):
        assert masks.to_tree(empty)[0].device.type == "cpu"
        assert masks.to_document_ids(empty).device.type == "cpu"


@pytest.mark.parametrize("size", [1, 2])
def test_over_ranks(ranks, size):
    ranks.run(size, view_cases.over_ranks)
