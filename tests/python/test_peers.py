# SPDX-License-Identifier: Apache-2.0
"""Backends of other packages on stand-ins for their kernels, which compute what they are given."""

import pytest
import torch

import peer_cases as cases
import peer_reference
from pipeline_cases import Case

NAMES = pytest.mark.parametrize("name", ["cudnn", "fa4", "flex"])


def shape_of(generator) -> tuple:
    def number(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    heads_kv = number(1, 2)
    return (number(1, 300), number(1, 400), heads_kv * number(1, 2), heads_kv, 8, 8 * number(1, 2))


@pytest.mark.parametrize("part", range(5))
@NAMES
def test_any_slices(name, part):
    count = 6 if name == "flex" else 30  # to make its masks takes long
    with cases.registered(name):
        for seed in range(count * part, count * (part + 1)):
            print("seed", seed)
            generator = torch.Generator().manual_seed(seed)
            shape = shape_of(generator)
            if shape[2] != shape[3]:
                shape = (*shape[:5], 8)
            make = cases.random_documents if seed % 3 == 0 else cases.random_slices
            cases.is_right(name, make(generator, *shape[:2]), shape, generator)


def test_documents_and_other_masks_go_different_ways():
    peer_reference.fa4_forms.clear()
    with cases.registered("fa4"):
        generator = torch.Generator().manual_seed(0)
        two = torch.tensor([[0, 20, 0, 30, -99, 99], [25, 50, 30, 70, -99, 99]], dtype=torch.int32)
        whole = torch.tensor([[0, 50, 0, 70, -(1 << 30), 20]], dtype=torch.int32)
        for slices, form in ((whole, "whole"), (two, "packed"), (whole.repeat(2, 1), "blocks")):
            cases.is_right("fa4", slices, (50, 70, 2, 1, 8, 8), generator)
            assert form in peer_reference.fa4_forms
        assert peer_reference.fa4_forms - {"window"} == {"whole", "packed", "blocks"}
        peer_reference.fa4_forms.clear()
        window = torch.tensor([[0, 50, 0, 70, 20 - 5, 20], [0, 0, 0, 0, 0, 0]], dtype=torch.int32)
        cases.is_right("fa4", window, (50, 70, 2, 1, 8, 8), generator)
        assert peer_reference.fa4_forms == {"whole", "window"}


@NAMES
@pytest.mark.parametrize("mask", ["varlen_causal", "four_types", "block_causal_q_overlap"])
@pytest.mark.parametrize("size", [1, 2])
def test_calc_attn(ranks, name, mask, size):
    case = Case(mask=mask, rows=131, with_lse_gradient=True)
    ranks.run(size, cases.through_a_key, name, case)


@NAMES
def test_rows_that_are_moved_in_stages(ranks, name):
    ranks.run(2, cases.through_a_key, name, Case(mask="causal", degree=2, dtype="float32"), 1e-5)
