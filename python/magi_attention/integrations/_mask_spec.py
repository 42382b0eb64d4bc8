# SPDX-License-Identifier: Apache-2.0
"""Masks of packed sequences as lists of rectangles."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from magi_attention.api import infer_attn_mask_from_cu_seqlens
from magi_attention.common import AttnRanges
from magi_attention.common._arguments import MAX_ROWS, as_bool, check_int, check_kind, check_window
from magi_attention.integrations._prefix_tree import PrefixTree


@dataclass
class AttnMaskSpec:
    """A mask over total_seqlen rows: rows q_ranges[i] = [start, end) see rows k_ranges[i] under
    mask_types[i], "full", "causal", "inv_causal" or "bi_causal". Rectangles must not overlap: a
    pair that two of them show counts twice.
    """

    q_ranges: list
    k_ranges: list
    mask_types: list
    total_seqlen: int

    def fingerprint(self) -> tuple:
        """The mask as one value that can be hashed; equal masks of equal lists share it."""
        rectangles = tuple(map(tuple, self.q_ranges)), tuple(map(tuple, self.k_ranges))
        return (self.total_seqlen, *rectangles, tuple(self.mask_types))

    def ranges(self) -> tuple[AttnRanges, AttnRanges, list]:
        """q_ranges, k_ranges and types as the functions that make plans and keys take them."""
        sides = (self.q_ranges, self.k_ranges)
        made = (AttnRanges.from_ranges([tuple(pair) for pair in side]) for side in sides)
        return *made, list(self.mask_types)

    @classmethod
    def causal(cls, seqlen: int) -> AttnMaskSpec:
        """One causal sequence of seqlen rows."""
        return cls.varlen([seqlen])

    @classmethod
    def varlen(
        cls, seqlens: Sequence[int], causal: bool = True, *, window_size: tuple[int, int] = (-1, -1)
    ) -> AttnMaskSpec:
        """Packed documents of seqlens rows each, which do not see each other. window_size: keys
        (left, right) of the diagonal that are seen, -1: all; causal makes the right side 0.
        ValueError for negative lengths and windows below -1.
        """
        window_size, causal = check_window(window_size), as_bool("causal", causal)
        lengths = [check_int(f"seqlens[{i}]", n, 0, MAX_ROWS) for i, n in enumerate(seqlens)]
        ends = list(itertools.accumulate(lengths))
        total = ends[-1] if ends else 0
        if window_size[0] < 0 and (causal or window_size[1] < 0):
            rows = [[end - n, end] for n, end in zip(lengths, ends) if n]
            kind = "causal" if causal else "full"
            return cls(rows, [list(pair) for pair in rows], [kind] * len(rows), total)
        bounds = [0, *dict.fromkeys(end for end in ends if end)]
        window = (window_size[0], 0) if causal else window_size
        q, k, kinds, _, _ = infer_attn_mask_from_cu_seqlens(bounds, bounds, False, window)
        sides = ([list(pair) for pair in side.to_naive_ranges()] for side in (q, k))
        return cls(*sides, [kind.value for kind in kinds], total)

    @classmethod
    def prefix_tree(
        cls, node_lengths: Sequence[int], sample_paths: Sequence[Sequence[int]]
    ) -> tuple[AttnMaskSpec, list[list[list[int]]]]:
        """The mask of samples that share prefixes, whose nodes of node_lengths rows lie one after
        the other, each once; sample_paths: for each sample its nodes from the root on. Returns it
        and, for each sample, the ranges of rows of its nodes. Position ids, labels and weights of
        such a batch: PrefixTree. Errors as PrefixTree.
        """
        tree = PrefixTree(node_lengths, sample_paths)
        return cls.of_tree(tree), tree.sample_token_ranges

    @classmethod
    def of_tree(cls, tree: PrefixTree) -> AttnMaskSpec:
        """The mask of a PrefixTree: a row sees its node's rows up to itself, and its ancestors'."""
        check_kind("tree", tree, PrefixTree, "a PrefixTree")
        q_ranges, k_ranges, types = [], [], []
        for node, rows in enumerate(tree.node_ranges):
            if tree.ancestors[node] is None or rows[0] == rows[1]:
                continue
            for seen, kind in (*((a, "full") for a in tree.ancestors[node]), (node, "causal")):
                keys = tree.node_ranges[seen]
                if keys[0] < keys[1]:
                    q_ranges.append(list(rows))
                    k_ranges.append(list(keys))
                    types.append(kind)
        return cls(q_ranges, k_ranges, types, tree.total_seqlen)
