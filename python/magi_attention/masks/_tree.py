# SPDX-License-Identifier: Apache-2.0
"""Masks of prefix trees, and the tree of samples by their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.masks._mask import Mask, check_form, check_square, padded_runs, to_ints


def from_tree(parents: Any, lengths: Any) -> Mask:
    """A tree whose nodes lie one after the other: a row of node i sees the rows of the node up to
    itself and those of its ancestors; parents[i] is an earlier node, or -1. ValueError for parents
    that are not.
    """
    parents, lengths = to_ints("parents", parents, 1), to_ints("lengths", lengths, 1)
    return Mask(MaskHandle.from_form("tree", parents=parents, lengths=lengths))


def to_tree(mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse: parents and lengths int32 [nodes], of as few nodes as tell the mask. ValueError
    that names the first row which is in no tree.
    """
    rows = check_square(mask, "a tree")
    if not rows:
        empty = torch.empty(0, dtype=torch.int32, device="cpu")
        return empty, empty.clone()
    runs = padded_runs(mask, mask.rows_k)
    begins, ends = runs.unbind(-1)
    row = torch.arange(1, rows, device="cpu")[:, None]
    # A row goes on with the node of the one before if it sees itself beside what that sees.
    goes_on = (begins[1:] == begins[:-1]).all(1) & (
        (ends[1:] == ends[:-1]) | ((ends[1:] == row + 1) & (ends[:-1] == row))
    ).all(1)
    cuts = torch.zeros(rows + 1, dtype=torch.bool, device="cpu")
    cuts[0] = cuts[-1] = True
    first_rows = torch.nn.functional.pad((~goes_on).nonzero().view(-1) + 1, (1, 0))
    cuts[first_rows] = True
    # Nodes that such a row sees end where its runs do, but for the one that ends in the row itself.
    seen = runs[first_rows]
    bounds = seen[seen[..., 0] < first_rows[:, None]].clamp(max=rows)
    own = first_rows[:, None].expand(-1, runs.shape[1])[seen[..., 0] < first_rows[:, None]]
    cuts[torch.minimum(bounds, own[:, None]).flatten()] = True
    starts = cuts[:-1].nonzero().view(-1)
    lengths = torch.nn.functional.pad(starts, (0, 1), value=rows).diff()
    last = torch.where(begins[starts] < starts[:, None], ends[starts], 0)
    last = torch.minimum(last, starts[:, None]).amax(1) - 1 if runs.shape[1] else starts * 0 - 1
    parents = torch.where(last < 0, -1, torch.searchsorted(starts, last, right=True) - 1)
    check_form(mask, from_tree(parents, lengths), "a tree")
    return parents.int(), lengths.int()


@dataclass(frozen=True)
class TokenTree:
    """Samples whose shared beginnings are stored once. token_ids, position_ids int64 [rows]: the
    tokens of all nodes one after the other, and their places in their samples. parents, lengths: of
    nodes, as from_tree; sample_paths: the nodes of each sample from its first token on, as
    magi_attention.integrations.packed.PrefixTree takes them with lengths.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    parents: list[int]
    lengths: list[int]
    sample_paths: list[list[int]]

    def rows_of(self, sample: int) -> torch.Tensor:
        """int64 [tokens of the sample]: where its tokens lie."""
        ends = torch.tensor(self.lengths, device="cpu").cumsum(0).tolist()
        return torch.cat(
            [
                torch.arange(ends[n] - self.lengths[n], ends[n], device="cpu")
                for n in self.sample_paths[sample]
            ]
        )


def from_token_ids(samples: Sequence[Any]) -> tuple[Mask, TokenTree]:
    """The tree of samples, sequences of token ids, that share what they have in common from their
    first tokens on, and its mask. ValueError for a sample without tokens.
    """
    given = [list(map(int, sample)) for sample in samples]
    for index, tokens in enumerate(given):
        if not tokens:
            raise ValueError(f"samples[{index}] has no tokens; allowed: one or more")
    parents: list[int] = []
    nodes: list[list[int]] = []
    starts: list[int] = []
    paths: list[list[int]] = [[] for _ in given]
    # Samples whose first `begin` tokens are those of `parent` and those before it, and which share
    # the next one. A node's own come before its siblings, so that branches lie together.
    groups = _by_token(given, range(len(given)), 0, -1)
    while groups:
        group, begin, parent = groups.pop()
        end = _common(given, group, begin)
        for sample in group:
            paths[sample].append(len(nodes))
        groups.extend(_by_token(given, group, end, len(nodes)))
        nodes.append(given[group[0]][begin:end])
        parents.append(parent)
        starts.append(begin)
    lengths = [len(node) for node in nodes]
    positions = [torch.arange(s, s + n, device="cpu") for s, n in zip(starts, lengths)]
    tokens = torch.tensor([t for node in nodes for t in node], dtype=torch.int64, device="cpu")
    position_ids = torch.cat(positions) if positions else tokens.clone()
    tree = TokenTree(tokens, position_ids, parents, lengths, paths)
    return from_tree(parents, lengths), tree


def _by_token(
    samples: list[list[int]], group: Sequence[int], begin: int, parent: int
) -> list[tuple[list[int], int, int]]:
    """The samples of a group by their token at `begin`, last ones first."""
    found: dict[int, list[int]] = {}
    for sample in group:
        if len(samples[sample]) > begin:
            found.setdefault(samples[sample][begin], []).append(sample)
    return [(part, begin, parent) for part in reversed(found.values())]


def _common(samples: list[list[int]], group: list[int], begin: int) -> int:
    """Returns how many tokens a group shares, at least begin."""
    low, high = (samples[chosen(group, key=samples.__getitem__)] for chosen in (min, max))
    end = min(len(low), len(high))
    while begin < end:
        middle = (begin + end + 1) // 2
        if low[begin:middle] == high[begin:middle]:
            begin = middle
        else:
            end = middle - 1
    return begin
