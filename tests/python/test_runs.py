# SPDX-License-Identifier: Apache-2.0
"""Masks as runs of keys, interval ends, blocks and documents, cell by cell."""

import pytest
import torch

import peer_cases as cases
from backend_cases import prepare as counted
from magi_attention import masks
from magi_attention.backends import _runs

SIZES = [(1, 1), (37, 50), (64, 20), (90, 128)]


def cells(runs: _runs.Runs) -> torch.Tensor:
    keys = torch.arange(runs.num_keys)
    found = torch.zeros(runs.num_rows, runs.num_keys, dtype=torch.int64)
    shown = (runs.begins[:, None] <= keys) & (keys < runs.ends[:, None])
    return found.index_add_(0, runs.rows, shown.long()).bool()


def counts_of(slices: torch.Tensor, rows: int, keys: int) -> torch.Tensor:
    """How many slices show each pair."""
    tensors = torch.zeros(rows, 1, 1), torch.zeros(keys, 1, 1), torch.zeros(keys, 1, 1)
    return counted(cases.problem_of(slices, tensors, False))


@pytest.fixture(params=range(25), ids=lambda seed: f"seed{seed}")
def random(request):
    """Slices, and the numbers of rows and keys."""
    generator = torch.Generator().manual_seed(request.param)
    rows, keys = SIZES[request.param % len(SIZES)]
    return cases.random_slices(generator, rows, keys), rows, keys


def test_layers_count_pairs(random):
    slices, rows, keys = random
    counts = counts_of(slices, rows, keys)
    layers = _runs.layers_of(*random)
    assert len(layers) == int(counts.max())
    for depth, layer in enumerate(layers, start=1):
        assert torch.equal(cells(layer), counts >= depth)
        same_row = layer.rows[1:] == layer.rows[:-1]
        assert (layer.begins[1:] > layer.ends[:-1])[same_row].all()  # a run is as long as can be


def test_every_form_tells_the_same(random):
    for layer in _runs.layers_of(*random):
        wanted = cells(layer)
        ends = _runs.interval_ends(layer)
        told = masks.from_interval_ends(ends, layer.num_keys)
        matrix = masks.to_matrix(told)
        assert torch.equal(matrix, wanted)
        assert len(ends) == len(masks.to_interval_ends(told))  # as few as can be
        parts = _runs.split(layer, 2)
        assert torch.equal(sum(cells(part).long() for part in parts), wanted.long())
        assert all(int(part.counts().max()) <= 2 for part in parts)
        most = int(layer.counts().max())
        held = _runs.bounds(layer, most, layer.num_rows + 3).long()
        keys = torch.arange(layer.num_keys)
        inside = [
            (a[:, None] <= keys) & (keys < b[:, None]) for a, b in held.view(-1, 2, len(held[0]))
        ]
        shown = torch.stack(inside).any(0)
        assert torch.equal(shown[: layer.num_rows], wanted) and not shown[layer.num_rows :].any()
        rows, lone = _runs.unseen(layer)
        assert torch.equal(rows, (~wanted.any(1)).nonzero().flatten())
        assert torch.equal(lone, (~wanted.any(0)).nonzero().flatten())


@pytest.mark.parametrize("height, width", [(16, 8), (1, 1), (128, 64)])
def test_blocks(random, height, width):
    for layer in _runs.layers_of(*random):
        wanted = cells(layer)
        found = _runs.blocks_of(layer, height, width)
        for down in range(found.whole.shape[0]):
            for across in range(found.whole.shape[1]):
                rows, keys = slice(down * height, (down + 1) * height), slice(
                    across * width, (across + 1) * width)  # fmt: skip
                block = wanted[rows, keys]
                is_whole = bool(block.all()) and block.shape == (height, width)
                assert bool(found.whole[down, across]) == is_whole
                assert bool(found.part[down, across]) == (bool(block.any()) and not is_whole)
        numbers, columns = _runs.listed(found.part)
        for line, number in enumerate(numbers.tolist()):
            chosen = found.part[line].nonzero().flatten().tolist()
            assert columns[line, :number].tolist() == chosen


@pytest.mark.parametrize("seed", range(50))
def test_documents(seed):
    generator = torch.Generator().manual_seed(seed)
    rows, keys = SIZES[seed % len(SIZES)]
    slices = cases.random_documents(generator, rows, keys)
    found = _runs.documents_of(slices, rows, keys)
    counts = counts_of(slices, rows, keys)
    if found is None:  # a causal document with fewer keys than rows
        assert (slices[:, 3] - slices[:, 2] < slices[:, 1] - slices[:, 0]).any()
        return
    assert found.lengths.sum(0).tolist() == [rows, keys]
    told = torch.zeros(rows, keys)
    row = key = 0
    for height, width in found.lengths.tolist():
        block = torch.ones(height, width)
        if found.right is not None:
            block = block.tril(width - height + found.right)
        if found.left is not None:
            block = block.triu(width - height - found.left)
        told[row : row + height, key : key + width] = block
        row, key = row + height, key + width
    assert torch.equal(told.double(), counts)


@pytest.mark.parametrize(
    "slices",
    [[(0, 4, 0, 4, -100, 100), (4, 8, 2, 8, -100, 100)],  # keys of two documents
     [(0, 4, 4, 8, -100, 100), (4, 8, 0, 4, -100, 100)],  # keys in another order
     [(0, 4, 0, 4, -100, 0), (4, 8, 4, 8, -100, 100)],  # one causal, one full
     [(0, 8, 0, 8, -100, -1)],  # below the diagonal
     [(0, 4, 0, 4, -2, 0), (4, 8, 4, 8, -1, 0)]],  # two windows
)  # fmt: skip
def test_other_masks_are_no_documents(slices):
    assert _runs.documents_of(torch.tensor(slices, dtype=torch.int32), 8, 8) is None


def test_whatever_the_default_device_is():
    slices = torch.tensor([[0, 4, 0, 4, -100, 0], [5, 8, 4, 8, -100, 0]], dtype=torch.int32)
    with torch.device("meta"):
        (layer,) = _runs.layers_of(slices, 8, 8)
        found = [
            _runs.interval_ends(layer), _runs.bounds(layer, 1, 9), *_runs.unseen(layer),
            *_runs.listed(_runs.blocks_of(layer, 2, 2).part), *_runs.split(layer, 1)[0][:3],
            _runs.documents_of(slices, 8, 8).lengths,
        ]  # fmt: skip
    assert all(t.device.type == "cpu" for t in found)
