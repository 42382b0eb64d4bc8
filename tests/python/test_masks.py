# SPDX-License-Identifier: Apache-2.0
"""Masks from the descriptions of other programs and back, against every pair by its definition."""

import itertools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from magi_attention import Plan, masks
from magi_attention.api import flex_flash_attn_func, infer_attn_mask_from_cu_seqlens
from magi_attention.common import AttnRanges
from magi_attention.integrations._documents import lengths_of as read_lengths

CASES = 300  # for each of the three seeds of rng


def check(mask, wanted, case) -> None:
    """The mask holds the wanted pairs, each in one slice."""
    rows, keys = (torch.arange(n) for n in wanted.shape)
    diagonal, count = keys - rows[:, None], torch.zeros(wanted.shape, dtype=torch.int64)
    for q0, q1, k0, k1, low, high in mask.slices.tolist():
        inside = ((rows >= q0) & (rows < q1))[:, None] & (keys >= k0) & (keys < k1)
        count += inside & (diagonal >= low) & (diagonal <= high)
    assert torch.equal(count, wanted.long()), f"case {case}"
    assert torch.equal(masks.to_matrix(mask), wanted), f"case {case}"
    assert mask.area == int(wanted.sum())


def lengths_of(rng, documents: int = 5, longest: int = 6) -> list[int]:
    return [rng.choice((0, 1, rng.randint(0, longest))) for _ in range(rng.randint(0, documents))]


def bounds_of(lengths) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def matrix_of(rng, rows: int, keys: int) -> torch.Tensor:
    """Any matrix, or one of few intervals."""
    found = torch.zeros(rows, keys, dtype=torch.bool)
    if rng.random() < 0.3:
        return torch.tensor(
            [[rng.random() < 0.5 for _ in range(keys)] for _ in range(rows)], dtype=torch.bool
        ).view(rows, keys)
    for _ in range(rng.randint(0, 4)):
        q, k = (sorted((rng.randint(0, n), rng.randint(0, n))) for n in (rows, keys))
        part = torch.ones(q[1] - q[0], k[1] - k[0], dtype=torch.bool)
        found[q[0] : q[1], k[0] : k[1]] |= part.tril(rng.randint(-3, 9)).triu(rng.randint(-9, 3))
    return found


class TestDocuments:
    def test_bounds(self, rng):
        for case in range(CASES):
            lengths = lengths_of(rng)
            is_causal, right = rng.random() < 0.6, rng.randint(-1, 4)
            left = rng.randint(-1, 4) if rng.random() < 0.5 else -1
            more = [n and n + rng.choice((0, 0, rng.randint(-n, 3))) for n in lengths]
            wanted = torch.zeros(sum(lengths), sum(more), dtype=torch.bool)
            q0 = k0 = 0
            for of_q, of_k in zip(lengths, more):
                part = torch.ones(of_q, of_k, dtype=torch.bool)
                if is_causal or right >= 0:
                    part = part.tril(of_k - of_q + (0 if is_causal else right))
                if left >= 0:
                    part = part.triu(of_k - of_q - left)
                wanted[q0 : q0 + of_q, k0 : k0 + of_k] = part
                q0, k0 = q0 + of_q, k0 + of_k
            options = dict(causal=is_causal, window_size=(left, right))
            mask = masks.from_cu_seqlens(bounds_of(lengths), bounds_of(more), **options)
            check(mask, wanted, case)
            if lengths == more:
                found = masks.to_cu_seqlens(mask, **options)
                assert masks.from_cu_seqlens(found, **options) == mask, case
                if left != 0 or not (is_causal or right == 0):
                    assert found.tolist() == sorted({0, *bounds_of(lengths).tolist()}), case

    @pytest.mark.parametrize("window", [(0, 2), (0, -1), (0, 1), (1, 0), (2, 3), (-1, 2)])
    def test_bounds_under_windows(self, window):
        options = dict(causal=False, window_size=window)
        for bounds in ([0, 4, 8], [0, 1, 2, 7], [0, 5, 6], [0, 3], [0]):
            mask = masks.from_cu_seqlens(bounds, **options)
            assert masks.to_cu_seqlens(mask, **options).tolist() == bounds

    def test_ids(self, rng):
        for case in range(CASES):
            ids = torch.tensor(sorted(rng.choices(range(-1, 4), k=rng.randint(0, 14))))
            if rng.random() < 0.5:
                ids = ids[torch.tensor(rng.sample(range(len(ids)), len(ids)), dtype=torch.int64)]
            is_causal = rng.random() < 0.5
            wanted = (ids[:, None] == ids) & (ids >= 0)
            wanted = wanted.tril() if is_causal else wanted
            mask = masks.from_document_ids(ids.long(), causal=is_causal, padding_id=-1)
            check(mask, wanted, case)
            again = masks.to_document_ids(mask, causal=is_causal)
            assert masks.from_document_ids(again, causal=is_causal, padding_id=-1) == mask, case

    def test_ids_of_many_parts(self):
        """Parts of one row are joined along diagonals, causal or not; long ones are not gone
        through row by row.
        """
        ids = torch.arange(600) % 2
        for causal, slices in ((True, 300), (False, 599)):
            mask = masks.from_document_ids(ids, causal=causal)
            wanted = ids[:, None] == ids
            assert torch.equal(masks.to_matrix(mask), wanted.tril() if causal else wanted)
            assert len(mask.slices) == slices
        long = (torch.arange(80) % 2).repeat_interleave(8192)
        for causal, slices in ((True, 2 * 820), (False, 2 * 1600)):
            mask, rows = masks.from_document_ids(long, causal=causal), 40 * 8192
            assert mask.area == 2 * (rows * (rows + 1) // 2 if causal else rows * rows)
            assert len(mask.slices) == slices

    def test_windows(self, rng):
        for case in range(CASES):
            rows, left, right = rng.randint(0, 12), rng.randint(-1, 13), rng.randint(-1, 13)
            wanted = torch.ones(rows, rows, dtype=torch.bool)
            wanted = wanted.triu(-left) if left >= 0 else wanted
            wanted = wanted.tril(right) if right >= 0 else wanted
            mask = masks.from_window(rows, left, right)
            check(mask, wanted, case)
            assert masks.from_window(rows, *masks.to_window(mask)) == mask, case

    def test_prefixes(self, rng):
        for case in range(CASES):
            lengths = lengths_of(rng)
            prefixes = [rng.randint(0, 8) for _ in lengths]
            parts = []
            for length, prefix in zip(lengths, prefixes):
                part = torch.ones(length, length, dtype=torch.bool).tril()
                part[:, :prefix] = True
                parts.append(part)
            wanted = torch.block_diag(*parts).bool() if sum(lengths) else torch.zeros(0, 0).bool()
            mask = masks.from_prefix_lm(bounds_of(lengths), prefixes)
            check(mask, wanted, case)
            assert masks.from_prefix_lm(*masks.to_prefix_lm(mask)) == mask, case

    def test_parameters_of_megatron(self, rng):
        for case in range(CASES):
            lengths = [n for n in lengths_of(rng) if n]
            places = [n + rng.choice((0, rng.randint(0, 3))) for n in lengths]
            is_causal = rng.random() < 0.5
            parts = []
            for length, place in zip(lengths, places):
                part = torch.zeros(place, place, dtype=torch.bool)
                part[:length, :length] = True
                parts.append(part.tril() if is_causal else part)
            wanted = torch.block_diag(*parts).bool() if lengths else torch.zeros(0, 0).bool()
            real, padded = bounds_of(lengths), bounds_of(places)
            params = SimpleNamespace(
                cu_seqlens_q=real, cu_seqlens_kv=real, cu_seqlens_q_padded=padded,
                cu_seqlens_kv_padded=padded,
            )  # fmt: skip
            mask = masks.from_packed_seq_params(params, causal=is_causal)
            check(mask, wanted, case)
            found = masks.to_packed_seq_params(mask, causal=is_causal)
            assert found["cu_seqlens_q"].tolist() == real.tolist(), case
            assert found["cu_seqlens_kv_padded"].tolist() == padded.tolist(), case
            assert found["max_seqlen_q"] == max(lengths, default=0)


@pytest.mark.parametrize("padding", [[-1], [-1, -1, -1], [-1000, -1000]], ids=str)
@pytest.mark.parametrize("make", [list, torch.tensor], ids=["list", "tensor"])
def test_padded_bounds(make, padding):
    """Every reader of bounds takes those that numbers below 0 fill up."""

    def read(bounds):
        fields = SimpleNamespace(cu_seqlens_q=bounds, cu_seqlens_kv=bounds)
        return (
            infer_attn_mask_from_cu_seqlens(bounds, bounds, True),
            masks.from_cu_seqlens(bounds).slices.tolist(),
            masks.from_prefix_lm(bounds, [1, 2]).slices.tolist(),
            masks.from_packed_seq_params(fields).slices.tolist(),
            read_lengths("cu_seqlens", bounds, 7),
        )

    assert read(make([0, 3, 7, *padding])) == read(make([0, 3, 7]))
    hole = make([0, 3, *padding, 7])
    for call in (
        lambda: infer_attn_mask_from_cu_seqlens(hole, hole),
        lambda: masks.from_cu_seqlens(hole),
        lambda: read_lengths("cu_seqlens", hole, 7),
    ):
        with pytest.raises(ValueError, match="cu_seqlens"):
            call()


class TestTrees:
    def test_parents(self, rng):
        for case in range(CASES):
            lengths = lengths_of(rng, 7, 4)
            parents = [rng.randint(-1, i - 1) for i in range(len(lengths))]
            bounds = bounds_of(lengths).tolist()
            wanted = torch.ones(bounds[-1], bounds[-1], dtype=torch.bool).tril()
            seen = torch.zeros_like(wanted)
            for node, parent in enumerate(parents):
                rows = slice(bounds[node], bounds[node + 1])
                seen[rows, rows] = True
                while parent >= 0:
                    seen[rows, bounds[parent] : bounds[parent + 1]] = True
                    parent = parents[parent]
            wanted &= seen
            mask = masks.from_tree(parents, lengths)
            check(mask, wanted, case)
            assert masks.from_tree(*masks.to_tree(mask)) == mask, case

    def test_tokens(self, rng):
        for case in range(CASES):
            samples = [
                [rng.randint(0, 1) for _ in range(rng.randint(1, 7))]
                for _ in range(rng.randint(0, 6))
            ]
            mask, tree = masks.from_token_ids(samples)
            prefixes = {tuple(s[:n]) for s in samples for n in range(1, len(s) + 1)}
            assert len(tree.token_ids) == mask.rows_q == len(prefixes), case
            visible = masks.to_matrix(mask)
            for index, sample in enumerate(samples):
                rows = tree.rows_of(index)
                assert tree.token_ids[rows].tolist() == sample, case
                assert tree.position_ids[rows].tolist() == list(range(len(sample))), case
                seen = visible[rows]
                assert torch.equal(seen[:, rows], torch.ones(len(rows), len(rows)).tril().bool())
                assert int(seen.sum()) == len(rows) * (len(rows) + 1) // 2, case

    def test_trees_of_packed_samples(self):
        """What the trie gives is a tree of magi_attention.integrations.packed."""
        from magi_attention.integrations.packed import AttnMaskSpec

        mask, tree = masks.from_token_ids([[5, 6, 7], [5, 6, 8, 9], [5, 1]])
        spec, _ = AttnMaskSpec.prefix_tree(tree.lengths, tree.sample_paths)
        assert masks.from_ranges(*spec.ranges(), mask.rows_q, mask.rows_q) == mask
        assert tree.lengths == [1, 1, 1, 2, 1] and tree.parents == [-1, 0, 1, 1, 0]


class TestIntervals:
    def test_ends(self, rng):
        for case in range(CASES):
            rows, keys, count = rng.randint(0, 8), rng.randint(0, 12), rng.choice((1, 3, 5))
            ends = torch.tensor(
                [[rng.randint(0, keys) for _ in range(rows)] for _ in range(count)]
            ).view(count, rows)
            key = torch.arange(keys)
            wanted = key < ends[0][:, None]
            for n in range(1, count, 2):
                wanted = wanted | ((key >= ends[n][:, None]) & (key < ends[n + 1][:, None]))
            mask = masks.from_interval_ends(ends[None], keys)
            check(mask, wanted, case)
            found = masks.to_interval_ends(mask)
            assert len(found) <= count and bool((found.diff(dim=0) >= 0).all()), case
            assert masks.from_interval_ends(found, keys) == mask, case
            wider = masks.to_interval_ends(mask, 7)
            assert len(wider) == 7 and masks.from_interval_ends(wider, keys) == mask, case

    def test_columns(self, rng):
        for case in range(CASES):
            rows, keys, is_causal = rng.randint(0, 9), rng.randint(0, 9), rng.random() < 0.5
            count = rng.choice((1, 2) if is_causal else (2, 4))
            columns = torch.tensor(
                [[rng.randint(0, rows) for _ in range(count)] for _ in range(keys)]
            ).view(keys, count)
            wanted = torch.ones(rows, keys, dtype=torch.bool)
            for key, of_key in enumerate(columns.tolist()):
                if is_causal:
                    wanted[:key, key] = False
                    wanted[of_key[0] : rows if count == 1 else of_key[1], key] = False
                elif count == 2:
                    wanted[of_key[0] :, key] = False
                    wanted[: of_key[1], key] = False
                else:
                    wanted[of_key[0] : of_key[1], key] = False
                    wanted[of_key[2] : of_key[3], key] = False
            options = dict(causal=is_causal, rows_q=rows)
            mask = masks.from_flashmask(columns[None, None], **options)
            check(mask, wanted, case)
            found = masks.to_flashmask(mask, causal=is_causal)
            assert found.shape[-1] <= count, case
            assert masks.from_flashmask(found, **options) == mask, case
            found = masks.to_flashmask(mask, causal=is_causal, num_bounds=2 if is_causal else 4)
            assert masks.from_flashmask(found, **options) == mask, case

    def test_runs_and_ranges(self, rng):
        for case in range(CASES):
            wanted = matrix_of(rng, rng.randint(0, 10), rng.randint(0, 10))
            mask = masks.from_matrix(wanted)
            assert masks.from_intervals(*mask.runs, wanted.shape[1]) == mask, case
            assert masks.from_ranges(*mask.ranges(), *wanted.shape) == mask, case
            check(mask.transposed(), wanted.T, case)

    def test_long_sequences(self):
        """A million rows, by intervals alone."""
        bounds = torch.arange(0, 1_000_001, 100)
        mask = masks.from_cu_seqlens(bounds)
        assert torch.equal(masks.to_cu_seqlens(mask).long(), bounds)
        columns = masks.to_flashmask(mask)
        assert columns.shape == (1, 1, 1_000_000, 1) and masks.from_flashmask(columns) == mask
        assert masks.from_interval_ends(masks.to_interval_ends(mask), 1_000_000) == mask
        assert masks.from_document_ids(masks.to_document_ids(mask)) == mask
        assert len(masks.from_flashmask(columns).slices) == 10_000


class TestMatrices:
    def test_matrices(self, rng):
        for case in range(CASES):
            rows, keys = rng.randint(0, 9), rng.randint(0, 9)
            wanted = matrix_of(rng, rows, keys)
            check(masks.from_matrix(wanted), wanted, case)
            hidden = rng.choice((-torch.inf, torch.finfo(torch.float32).min))
            added = torch.zeros(rows, keys).masked_fill(~wanted, hidden)
            assert masks.from_matrix(added) == masks.from_matrix(wanted.int() * 3), case
            batch = torch.stack([wanted, matrix_of(rng, rows, keys)])[:, None].expand(-1, 3, -1, -1)
            whole = torch.zeros(2 * rows, 2 * keys, dtype=torch.bool)
            whole[:rows, :keys], whole[rows:, keys:] = batch[0, 0], batch[1, 0]
            check(masks.from_matrix(batch), whole, case)

    def test_functions_of_pairs(self, rng):
        for case in range(CASES):
            wanted = matrix_of(rng, rng.randint(1, 9), rng.randint(1, 9))

            ids = torch.arange(len(wanted))

            def seen(batch, head, q, k, wanted=wanted, ids=ids):
                return wanted[ids[q], k] & wanted[None, None][batch, 0, q, k]

            mask = masks.from_mask_mod(seen, *wanted.shape)
            check(mask, wanted, case)
            rows, keys = (torch.arange(n) for n in wanted.shape)
            found = masks.to_mask_mod(mask)(None, None, rows[:, None], keys)
            assert torch.equal(found, wanted), case

    def test_blocks(self, rng):
        for case in range(CASES):
            wanted = matrix_of(rng, rng.randint(1, 20), rng.randint(1, 20))
            mask = masks.from_matrix(wanted)
            size = rng.choice((1, 2, 4, 8, 16))
            blocks = masks.to_block_mask(mask, size)
            assert masks.from_block_mask(blocks) == mask, case
            if case % 30:
                continue
            theirs = create_block_mask(
                lambda batch, head, q, k: wanted[q, k], None, None, *wanted.shape, "cpu", size
            )
            assert masks.from_block_mask(theirs) == mask, case
            for name in ("kv_num_blocks", "full_kv_num_blocks"):
                assert torch.equal(getattr(blocks, name), getattr(theirs, name)), case
            assert torch.equal(blocks.to_dense(), theirs.to_dense())
            found = create_mask(masks.to_mask_mod(mask), 1, 1, *wanted.shape, "cpu")
            assert torch.equal(found[0, 0], wanted), case

    @pytest.mark.parametrize("sizes", [(2, None), (None, 3), (2, 3)])
    def test_blocks_of_batches_and_heads(self, sizes):
        """Equal tables of blocks do not make equal masks."""
        bounds = torch.tensor([3, 5])

        def mask(mask_mod):
            return masks.from_block_mask(create_block_mask(mask_mod, *sizes, 8, 8, "cpu", 8))

        def equal(batch, head, q, k):
            return (q < 3) == (k < 3) & (batch >= 0)

        def of_batches(batch, head, q, k):
            return (q < bounds[batch]) == (k < bounds[batch])

        def of_heads(batch, head, q, k):
            return q + head >= k

        assert mask(equal).area == 9 + 25
        if sizes[0]:
            pattern = r"^mask_mod of batch 1 and head 0 differs in row 0"
            with pytest.raises(ValueError, match=pattern):
                mask(of_batches)
        if sizes[1]:
            pattern = r"^mask_mod of batch 0 and head 1 differs in row 0"
            with pytest.raises(ValueError, match=pattern):
                mask(of_heads)

    def test_blocks_without_a_function(self):
        """Listed blocks are whole then."""
        blocks = create_block_mask(
            lambda batch, head, q, k: q // 4 >= k // 4, None, None, 10, 10, "cpu", 4
        )
        wanted = torch.arange(10)[:, None] // 4 >= torch.arange(10) // 4
        check(masks.from_block_mask(blocks), wanted, 0)


def test_attention_under_a_mask():
    """Ranges of a mask compute what torch's attention does under its matrix."""
    columns = torch.tensor([[9, 0], [7, 2], [9, 3], [9, 0], [6, 0], [9, 9], [9, 6], [9, 0], [9, 0]])
    mask = masks.from_flashmask(columns, causal=False)
    visible = masks.to_matrix(mask)
    q, k, v = (torch.randn(9, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    out, _ = flex_flash_attn_func(q, k, v, *mask.tensors())
    by_head = (x.transpose(0, 1)[None] for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(*by_head, visible, enable_gqa=True)
    rows = visible.any(1)
    assert (out[rows] - wanted[0].transpose(0, 1)[rows]).abs().max() < 1e-12


def test_plans():
    """A mask and its ranges give the same plan."""
    mask = masks.from_prefix_lm([0, 40, 100], [13, 0])
    sizes = dict(cp_size=2, num_heads_q=4, num_heads_kv=2, head_dim=8)
    plan = Plan.from_mask(mask, **sizes)
    assert plan == Plan.from_ranges(*mask.ranges(), 100, **sizes) and plan.defects() == ""
    windowed = masks.from_cu_seqlens([0, 40, 100], window_size=(5, 0))
    assert Plan.from_mask(windowed, **sizes, on=plan).chunk_ranks == plan.chunk_ranks
    for other, error, pattern in (
        (masks.from_matrix(torch.ones(3, 2).bool()), ValueError, "mask has 3 queries and 2 keys"),
        (masks.from_cu_seqlens([0]), ValueError, "mask has 0 queries"),
        (mask.slices, TypeError, "mask is a Tensor; allowed: a Mask of magi_attention.masks"),
    ):
        with pytest.raises(error, match=pattern):
            Plan.from_mask(other, **sizes)
    with pytest.raises(ValueError, match="cp_size is 0; allowed: 1"):
        Plan.from_mask(mask, **{**sizes, "cp_size": 0})
    with pytest.raises(TypeError, match="on is a Mask; allowed: a Plan, or None"):
        Plan.from_mask(mask, **sizes, on=mask)


class TestRefusals:
    causal = masks.from_cu_seqlens([0, 4, 9])

    @pytest.mark.parametrize(
        "call, pattern",
        [
            (lambda m: masks.to_cu_seqlens(m, causal=False), r"row 0 sees keys \[0, 1\), which cu"),
            (lambda m: masks.to_cu_seqlens(m, window_size=(2, 0)), r"row 3 sees keys \[0, 4\)"),
            (lambda m: masks.to_document_ids(m, causal=False), r"row 0 sees keys \[0, 1\)"),
            (masks.to_window, r"row 4 sees keys \[4, 5\), which a window cannot tell"),
            (lambda m: masks.to_interval_ends(m, 1), r"row 4 sees keys \[4, 5\); allowed: what 1"),
            (lambda m: masks.to_interval_ends(m, 2), "num_ends is 2; allowed: odd numbers"),
            (lambda m: masks.to_flashmask(m, num_bounds=4), "num_bounds is 4; allowed: 1, 2"),
            (lambda m: masks.to_packed_seq_params(m, causal=False), "row 0 sees keys"),
        ],
    )
    def test_documents(self, call, pattern):
        with pytest.raises(ValueError, match=pattern):
            call(self.causal)

    def test_first_rows(self):
        visible = torch.ones(9, 9, dtype=torch.bool).tril()
        visible[6, 2] = visible[7, 5] = False
        mask = masks.from_matrix(visible)
        for call in (
            masks.to_cu_seqlens, masks.to_document_ids, masks.to_window, masks.to_prefix_lm,
            masks.to_tree, masks.to_packed_seq_params,
        ):  # fmt: skip
            with pytest.raises(ValueError, match=r"row 6 sees keys \[0, 2\), \[3, 7\)"):
                call(mask)
        visible[8, 2] = False
        with pytest.raises(ValueError, match=r"row [678] sees keys .* a FlashMask of 2 bounds"):
            masks.to_flashmask(masks.from_matrix(visible))
        visible[2] = False
        for call in (masks.to_cu_seqlens, masks.to_prefix_lm):
            with pytest.raises(ValueError, match="row 2 sees no key"):
                call(masks.from_matrix(visible))
        with pytest.raises(ValueError, match="mask has 3 queries and 2 keys; allowed with a tree"):
            masks.to_tree(masks.from_matrix(torch.ones(3, 2).bool()))

    @pytest.mark.parametrize(
        "call, error, pattern",
        [
            (lambda: masks.from_cu_seqlens([0, 5, 3]), ValueError, "cu_seqlens"),
            (lambda: masks.from_cu_seqlens([0.5, 3]), TypeError, "cu_seqlens_q holds torch.float"),
            (lambda: masks.from_cu_seqlens([0, 1 << 40]), ValueError, "beyond int32"),
            (
                lambda: masks.from_document_ids(torch.arange(6000) % 2, causal=False), ValueError,
                "number of slices of document_ids is 18000000; allowed: at most 16777216",
            ),
            (
                lambda: masks.from_document_ids(torch.arange(20000) % 2, padding_id=0), ValueError,
                "document_ids is 50005000",
            ),
            (lambda: masks.from_prefix_lm([0, 5], [1, 2]), ValueError, "prefix_lengths is 2"),
            (
                lambda: masks.from_tree([-1, 1], [2, 2]), ValueError,
                r"^parents\[1\] is 1; allowed: -1, or the",
            ),
            (lambda: masks.from_tree([-1], [-2]), ValueError, r"^lengths\[0\] is -2; allowed: 0"),
            (lambda: masks.from_window(9, -2, 0), ValueError, "^left is -2; allowed: -1 or more"),
            (lambda: masks.from_window(9, 1, 0.5), TypeError, r"^right is 0\.5; allowed: an int"),
            (lambda: masks.from_tree([-1], [2, 2]), ValueError, "lengths is 2; allowed: 1, as"),
            (lambda: masks.from_token_ids([[1], []]), ValueError, r"samples\[1\] has no tokens"),
            (lambda: masks.from_interval_ends([[1], [2]], 3), ValueError, "ends is an array of 2"),
            (lambda: masks.from_interval_ends([[1, 4]], 3), ValueError, r"ends\[0\]\[1\] is 4"),
            (
                lambda: masks.from_interval_ends(torch.arange(6).view(2, 1, 3), 9), ValueError,
                "with masks that differ",
            ),
            (lambda: masks.from_flashmask([[1]], causal=False), ValueError, r"indices\[0\] is 1"),
            (
                lambda: masks.from_intervals([0, 1], [[2, 9]], 4), ValueError,
                r"interval of row 0 is \[2, 9\); allowed: 0 <= begin <= end <= 4",
            ),
            (lambda: masks.from_flashmask([[2], [3]]), ValueError, r"indices\[1\]\[0\] is 3"),
            (lambda: masks.from_intervals([0, 1], [[2]], 4), ValueError, r"shape \[1, 1\]"),
            (lambda: masks.from_matrix(torch.ones(3)), ValueError, "visible has 1 axes"),
            (
                lambda: masks.from_matrix(torch.tensor([[0.0, -1.5]])), ValueError,
                "row 0 adds -1.5 to the score of key 1; allowed: 0 where",
            ),
            (
                lambda: masks.from_matrix(torch.eye(2).view(1, 2, 1, 2)), ValueError,
                "visible has 2 heads whose masks differ",
            ),
            (
                lambda: masks.from_packed_seq_params(
                    SimpleNamespace(
                        cu_seqlens_q=[0, 5], cu_seqlens_kv=[0, 5], cu_seqlens_q_padded=[0, 4]
                    )
                ),
                ValueError, "document 0 in cu_seqlens_q is 5; allowed: at most 4, its room in",
            ),
        ],
    )  # fmt: skip
    def test_descriptions(self, call, error, pattern):
        with pytest.raises(error, match=pattern):
            call()

    @pytest.mark.parametrize("value", [
        1 << 31, (1 << 32) - 4, (1 << 32) + 4, (1 << 63) + 4, (1 << 64) - 4, 1 << 70, -(1 << 40),
    ])  # fmt: skip
    def test_integers_beyond_int32(self, value):
        """Of every kind that holds them, none wraps."""
        pattern = (
            f"cu_seqlens_q holds {value}, which is beyond int32; allowed: -2\\^31 to 2\\^31 - 1"
        )
        given = [[0, value]]
        for kind in ("uint32", "int64", "uint64"):
            limits = torch.iinfo(getattr(torch, kind))
            if limits.min <= value <= limits.max:
                given.append(np.array([0, value], dtype=kind))
                given.append(torch.tensor([0, value], dtype=getattr(torch, kind)))
        for bounds in given:
            with pytest.raises(ValueError, match=pattern):
                masks.from_cu_seqlens(bounds)

    def test_lists_of_lists(self):
        with pytest.raises(ValueError, match=f"ends holds {1 << 70}, which is beyond int32"):
            masks.from_interval_ends([[1, 2], [3, 1 << 70]], 4)

    def test_unsigned_integers(self):
        for kind in ("uint8", "uint16", "uint32", "uint64"):
            assert masks.from_cu_seqlens(np.array([0, 4, 9], dtype=kind)) == self.causal, kind

    @pytest.mark.parametrize(
        "fields, pattern",
        [
            (dict(kv=[0, 8, 4, 12]), r"cu_seqlens_kv\[2\] is 4; allowed: 8 or"),
            (dict(q=[0, 8, 4, 12], kv=[0, 4, 8, 12]), r"cu_seqlens_q\[2\] is 4; allowed: 8 or"),
            (dict(q=[4, 8], kv=[0, 4]), r"cu_seqlens_q\[0\] is 4; allowed: 0"),
            (dict(q_padded=[2, 6, 8, 12]), r"cu_seqlens_q_padded\[0\] is 2; allowed: 0"),
            (dict(kv_padded=[0, 9, 8, 16]), r"cu_seqlens_kv_padded\[2\] is 8; allowed: 9 or"),
            (dict(q=[]), "cu_seqlens_q is empty"),
            (dict(kv=[0, 12]), "entries of cu_seqlens_kv is 2; allowed: 4, as cu_seqlens_q"),
        ],
    )
    def test_parameters_of_megatron(self, fields, pattern):
        given = {"q": [0, 4, 8, 12], "kv": [0, 4, 8, 12], **fields}
        params = SimpleNamespace(**{f"cu_seqlens_{side}": x for side, x in given.items()})
        with pytest.raises(ValueError, match=pattern):
            masks.from_packed_seq_params(params)

    def test_pairs_that_are_shown_twice(self):
        ranges = AttnRanges.from_ranges([(0, 4), (2, 6)])
        pattern = r"row 2 is in slices \[0, 4\) x \[0, 4\) and \[2, 6\) .* that both show key 2"
        with pytest.raises(ValueError, match=pattern):
            masks.from_ranges(ranges, ranges, "full", 6, 6)
        with pytest.raises(ValueError, match="k_ranges has 1 entries; allowed: 2"):
            masks.from_ranges(ranges, AttnRanges.from_ranges([(0, 4)]), "full", 6, 6)

    def test_values(self):
        assert masks.from_window(5, -1, 0) == masks.from_cu_seqlens([0, 5])
        assert masks.from_window(5, -1, 0) != masks.from_window(5, -1, 1)
        assert masks.from_window(5, 0, 0) != masks.from_window(6, 0, 0) and self.causal != 3
        assert hash(masks.from_tree([-1, 0], [2, 3])) == hash(masks.from_cu_seqlens([0, 5]))
        assert repr(self.causal) == "Mask(rows_q=9, rows_k=9, slices=2)"
        again = pickle.loads(pickle.dumps(self.causal))
        assert again == self.causal and torch.equal(again.slices, self.causal.slices)
        assert "<svg" in self.causal.draw("two documents")
