# SPDX-License-Identifier: Apache-2.0
"""Masks in files: what the library reads is what the functions of the package make of the same."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

from magi_attention import masks
from magi_attention.common import AttnRanges

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "masks").glob("*.json"))
RECORDED = ROOT / "tests" / "mask" / "data"
CASES = 80  # for each of the three seeds of rng, of each form


def block_mask(rows_q, rows_k, block_size, kv_indices, full_kv_indices, offsets, intervals):
    """As a program would hold it."""
    pairs = torch.tensor(intervals, dtype=torch.int32).view(-1, 2)
    mod = masks.to_mask_mod(masks.from_intervals(torch.tensor(offsets), pairs, rows_k))
    tables = []
    for blocks in (kv_indices, full_kv_indices):
        tables.append(torch.tensor([[list(map(len, blocks))]], dtype=torch.int32))
        padded = [row + [0] * (-(-rows_k // block_size[1]) - len(row)) for row in blocks]
        tables.append(torch.tensor([[padded]], dtype=torch.int32))
    return BlockMask.from_kv_blocks(
        *tables, BLOCK_SIZE=tuple(block_size), mask_mod=mod, seq_lengths=(rows_q, rows_k)
    )


def by_functions(fields: dict) -> masks.Mask:
    """The mask of a file's fields by the functions of magi_attention.masks alone."""
    given = dict(fields)
    form = given.pop("form", "slices")
    if form == "slices":
        return masks.from_matrix(matrix_of(**given))
    if form == "block_mask":
        return masks.from_block_mask(block_mask(**given))
    if form == "packed_seq_params":
        causal = given.pop("causal", True)
        return masks.from_packed_seq_params(SimpleNamespace(**given), causal=causal)
    if form == "token_ids":
        return masks.from_token_ids(**given)[0]
    if form == "matrix":
        return masks.from_matrix(torch.tensor(given["visible"]))
    if form == "intervals":
        given["intervals"] = torch.tensor(given["intervals"]).view(-1, 2)
    return getattr(masks, f"from_{form}")(**given)


def matrix_of(rows_q: int, rows_k: int, slices: list) -> torch.Tensor:
    """The pairs of slices by their definition."""
    row, key = torch.arange(rows_q)[:, None], torch.arange(rows_k)
    count = torch.zeros(rows_q, rows_k, dtype=torch.int32)
    for entry in slices:
        if isinstance(entry, dict):
            (q0, q1), (k0, k1), kind = entry["q"], entry["k"], entry["type"]
            low = k0 - q0 if kind in ("inv_causal", "bi_causal") else None
            high = k1 - q1 if kind in ("causal", "bi_causal") else None
        else:
            q0, q1, k0, k1, low, high = entry
        seen = (row >= q0) & (row < q1) & (key >= k0) & (key < k1)
        seen = seen if low is None else seen & (key - row >= low)
        count += seen if high is None else seen & (key - row <= high)
    assert count.max() <= 1
    return count


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
class TestExamples:
    def test_are_what_functions_make(self, path):
        mask = masks.load(path)
        assert mask == by_functions(json.loads(path.read_text()))
        assert mask == masks.load(str(path))

    def test_are_as_recorded(self, path):
        """tests/mask reads the same two files in C++."""
        mask, recorded = masks.load(path), masks.load(RECORDED / path.name)
        assert mask == recorded
        assert len(mask.slices) == len(recorded.slices)


def test_examples_show_every_form():
    shown = {json.loads(path.read_text()).get("form", "slices") for path in EXAMPLES}
    assert shown == {*masks._files._WRITERS, "slices", "token_ids"}
    assert {path.name for path in EXAMPLES} == {path.name for path in RECORDED.glob("*.json")}


def lengths(rng) -> list[int]:
    return [rng.choice((0, 1, rng.randint(0, 6))) for _ in range(rng.randint(0, 5))]


def bounds(parts) -> list[int]:
    return [0, *itertools.accumulate(parts)]


def numbers(rng, rows: int, columns: int, most: int) -> list[list[int]]:
    return [[rng.randint(0, most) for _ in range(columns)] for _ in range(rows)]


def cu_seqlens(rng) -> dict:
    q = lengths(rng)
    found = {"cu_seqlens_q": bounds(q), "causal": rng.random() < 0.5}
    if rng.random() < 0.5:
        found["cu_seqlens_k"] = bounds(rng.randint(0, 6) for _ in q)
    if rng.random() < 0.5:
        found["window_size"] = [rng.randint(-1, 5), rng.randint(-1, 5)]
    return found


def document_ids(rng) -> dict:
    ids = [rng.randint(0, 3) for _ in range(rng.randint(0, 16))]
    found = {"document_ids": ids, "causal": rng.random() < 0.5}
    return {**found, "padding_id": 0} if rng.random() < 0.5 else found


def window(rng) -> dict:
    return {"rows": rng.randint(0, 9), "left": rng.randint(-1, 9), "right": rng.randint(-1, 9)}


def prefix_lm(rng) -> dict:
    parts = lengths(rng)
    return {"cu_seqlens": bounds(parts), "prefix_lengths": [rng.randint(0, 7) for _ in parts]}


def tree(rng) -> dict:
    parts = lengths(rng)
    return {"parents": [rng.randint(-1, i - 1) for i in range(len(parts))], "lengths": parts}


def token_ids(rng) -> dict:
    samples = range(rng.randint(0, 6))
    return {"samples": [[rng.randint(0, 1) for _ in range(rng.randint(1, 6))] for _ in samples]}


def flashmask(rng) -> dict:
    causal, rows = rng.random() < 0.5, rng.randint(0, 8)
    columns = rng.randint(1, 2) * (1 if causal else 2)
    table = numbers(rng, rng.randint(1, 8), columns, rows)
    return {"startend_row_indices": table, "causal": causal, "rows_q": rows}


def interval_ends(rng) -> dict:
    keys = rng.randint(0, 8)
    table = numbers(rng, 1 + 2 * rng.randint(0, 2), rng.randint(1, 8), keys)
    return {"ends": table, "rows_k": keys}


def intervals(rng) -> dict:
    keys, counts = rng.randint(0, 8), [rng.randint(0, 3) for _ in range(rng.randint(0, 8))]
    table = [sorted(pair) for pair in numbers(rng, sum(counts), 2, keys)]
    return {"offsets": bounds(counts), "intervals": table, "rows_k": keys}


def block_masks(rng) -> dict:
    rows, keys = rng.randint(1, 9), rng.randint(1, 9)
    size = [rng.randint(1, 4), rng.randint(1, 4)]
    blocks = range(-(-keys // size[1]))
    partial, whole = [], []
    for _ in range(-(-rows // size[0])):
        chosen = rng.sample(blocks, rng.randint(0, len(blocks)))
        cut = rng.randint(0, len(chosen))
        partial.append(sorted(chosen[:cut]))
        whole.append(sorted(chosen[cut:]))
    counts = [rng.randint(0, 2) for _ in range(rows)]
    pairs = [sorted(pair) for pair in numbers(rng, sum(counts), 2, keys)]
    return {
        "rows_q": rows, "rows_k": keys, "block_size": size, "kv_indices": partial,
        "full_kv_indices": whole, "offsets": bounds(counts), "intervals": pairs,
    }  # fmt: skip


def matrix(rng) -> dict:
    return {"visible": numbers(rng, rng.randint(1, 8), rng.randint(0, 8), 1)}


def packed_seq_params(rng) -> dict:
    parts = lengths(rng)
    found = {"cu_seqlens_q": bounds(parts), "cu_seqlens_kv": bounds(parts)}
    if rng.random() < 0.5:
        padded = bounds(part + rng.randint(0, 3) for part in parts)
        found.update({key + "_padded": padded for key in tuple(found)})
    return {**found, "causal": rng.random() < 0.5}


FORMS = {
    "block_mask": block_masks, "cu_seqlens": cu_seqlens, "document_ids": document_ids,
    "flashmask": flashmask, "interval_ends": interval_ends, "intervals": intervals,
    "matrix": matrix, "packed_seq_params": packed_seq_params, "prefix_lm": prefix_lm,
    "token_ids": token_ids, "tree": tree, "window": window,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_files_hold_what_functions_make(form, rng, tmp_path):
    path = tmp_path / "mask.json"
    for case in range(CASES):
        fields = {"form": form, **FORMS[form](rng)}
        path.write_text(json.dumps(fields))
        assert masks.load(path) == by_functions(fields), f"case {case} {fields}"


OPTIONS = {
    "block_mask": {"block_size": 16},
    "cu_seqlens": {"window_size": (4, -1)},
    "flashmask": {"num_bounds": 2},
    "interval_ends": {"num_ends": 3},
}


@pytest.mark.parametrize("form", ["slices", *masks._files._WRITERS])
def test_saved_masks_come_back(form, tmp_path):
    if form == "window":
        mask = masks.from_window(40, 3, 5)
    else:
        size = (4, -1) if form == "cu_seqlens" else (-1, -1)
        mask = masks.from_cu_seqlens([0, 9, 14, 40], window_size=size)
    path = tmp_path / "mask.json"
    masks.save(mask, path, form, **OPTIONS.get(form, {}))
    fields = json.loads(path.read_text())
    assert fields.get("form", "slices") == form
    assert masks.load(path) == mask == by_functions(fields)


def test_what_a_form_cannot_tell_is_not_saved(tmp_path):
    mask, path = masks.from_tree([-1, 0, 0], [4, 2, 3]), tmp_path / "mask.json"
    with pytest.raises(ValueError, match=r"row 6 sees .* which cu_seqlens cannot tell"):
        masks.save(mask, path, "cu_seqlens")
    with pytest.raises(ValueError, match="form is 'token_ids'; allowed: slices, block_mask, "):
        masks.save(mask, path, "token_ids")
    with pytest.raises(ValueError, match=r"options are \['causal'\]"):
        masks.save(mask, path, causal=True)
    with pytest.raises(ValueError, match="a matrix without rows"):
        masks.save(masks.from_ranges(*_no_ranges(), 0, 5), path, "matrix")
    with pytest.raises(TypeError, match="causl"):
        masks.save(mask, path, "document_ids", causl=True)
    assert not path.exists()


def _no_ranges():
    return AttnRanges.from_ranges([]), AttnRanges.from_ranges([]), []


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "mask.json"
    for text, message in {
        '{"form": "tree", "parents": [-1, 3], "lengths": [1, 1]}':
            r"mask.json: parents\[1\] is 3; allowed: -1, or the index of a node before it",
        '{"form": "trees"}': "mask.json: mask JSON: form is trees; allowed: block_mask, ",
        "": "mask.json: mask JSON is cut off",
        '{"rows_q": 2, "rows_k": 2, "slices": [[0, 2, 0, 2, null, 0], [1, 2, 0, 1, null, null]]}':
            "mask.json: row 1 is in slices .* both show key 0",
    }.items():  # fmt: skip
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            masks.load(path)
    with pytest.raises(OSError):
        masks.load(tmp_path / "none.json")
