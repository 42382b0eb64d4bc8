# SPDX-License-Identifier: Apache-2.0
"""Samples that share prefixes, each shared token computed once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind
from magi_attention.integrations._bound import AnyPlan, bound_of

IGNORED_LABEL = -100
_HOST = torch.device("cpu")  # whatever torch's default device is


class PrefixTree:
    """Samples as paths through nodes of a tree (or several trees). Rows are the nodes' tokens, node
    after node, each once: [node 0 | node 1 | ...].

    node_lengths: tokens of each node. sample_paths: for each sample its nodes from the root on. A
    sample stands for the causal sequence of its nodes' tokens.

    What a row predicts: the next row of its node; the last row of a node predicts the first token
    of every node that follows it in a sample. So labels, weights and log-probabilities are
    [total_seqlen, branches], and rows with fewer next tokens have the label -100 and weight 0.

    ValueError for nodes outside the list, for a node that occurs twice in a path and for one that
    comes after different nodes in two paths.
    """

    def __init__(self, node_lengths: Sequence[int], sample_paths: Sequence[Sequence[int]]) -> None:
        lengths = [
            check_int(f"node_lengths[{i}]", n, 0, MAX_ROWS) for i, n in enumerate(node_lengths)
        ]
        ends = list(itertools.accumulate(lengths))
        self.node_ranges = [(end - n, end) for n, end in zip(lengths, ends)]
        self.total_seqlen = ends[-1] if ends else 0
        self.sample_paths = [
            [
                check_int(f"sample_paths[{i}][{j}]", node, 0, len(lengths) - 1)
                for j, node in enumerate(path)
            ]
            for i, path in enumerate(sample_paths)
        ]
        # Of each node, the nodes before it in its samples; None for a node of no sample.
        self.ancestors: list[tuple[int, ...] | None] = [None] * len(lengths)
        for i, path in enumerate(self.sample_paths):
            self._add_path(i, path)
        self._predictor, self._branch = self._find_predictors()
        self.branches = int(self._branch.max()) + 1 if self.total_seqlen else 1

    def _add_path(self, sample: int, path: list[int]) -> None:
        for place, node in enumerate(path):
            before = tuple(path[:place])
            if node in before:
                raise ValueError(
                    f"sample_paths[{sample}] holds node {node} twice; allowed: each node once"
                )
            known = self.ancestors[node]
            if known is not None and known != before:
                raise ValueError(
                    f"node {node} comes after nodes {list(before)} in sample_paths[{sample}] and "
                    f"after {list(known)} in another; allowed: one way to each node, as in a tree"
                )
            self.ancestors[node] = before

    def _find_predictors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [total_seqlen] each: of every token the row that predicts it, -1 for none, and
        which of that row's next tokens it is.
        """
        predictor = torch.arange(-1, self.total_seqlen - 1, device=_HOST)
        branch = torch.zeros(self.total_seqlen, dtype=torch.int64, device=_HOST)
        followers: dict[int, int] = {}
        for (begin, end), before in zip(self.node_ranges, self.ancestors):
            if begin == end:
                continue
            if before is None:
                predictor[begin:end] = -1
                continue
            filled = [self.node_ranges[a][1] - 1 for a in before if self._rows_in(a)]
            predictor[begin] = row = filled[-1] if filled else -1
            if filled:
                branch[begin] = followers.get(row, 0)
                followers[row] = int(branch[begin]) + 1
        return predictor, branch

    def _rows_in(self, node: int) -> int:
        begin, end = self.node_ranges[node]
        return end - begin

    @property
    def sample_token_ranges(self) -> list[list[list[int]]]:
        """Returns for each sample the rows [start, end) of its nodes, in the order of its path."""
        return [[list(self.node_ranges[node]) for node in path] for path in self.sample_paths]

    @property
    def position_ids(self) -> torch.Tensor:
        """int64 [total_seqlen]: the place of every row in the samples that hold it; rows of no
        sample count from 0.
        """
        ids = torch.empty(self.total_seqlen, dtype=torch.int64, device=_HOST)
        for (begin, end), before in zip(self.node_ranges, self.ancestors):
            start = sum(self._rows_in(node) for node in before or ())
            ids[begin:end] = torch.arange(start, start + end - begin, device=_HOST)
        return ids

    def labels(self, input_ids: torch.Tensor) -> torch.Tensor:
        """int64 [total_seqlen, branches]: the tokens that each row predicts, of input_ids
        [total_seqlen] or [1, total_seqlen]; -100 where there is none.
        """
        if input_ids.numel() != self.total_seqlen:
            raise ValueError(
                f"input_ids has shape {list(input_ids.shape)}; allowed: [{self.total_seqlen}], the "
                "rows of all nodes"
            )
        flat = input_ids.reshape(-1)
        labels = flat.new_full((self.total_seqlen, self.branches), IGNORED_LABEL, dtype=torch.int64)
        rows, branches, tokens = self._predicted(flat.device)
        labels[rows, branches] = flat[tokens].to(torch.int64)
        return labels

    def loss_weights(
        self,
        sample_weights: Sequence[float | torch.Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """[total_seqlen, branches]: how often each label counts, so that the weighted sum of losses
        is the sum over samples of the sums over their tokens.

        sample_weights: for each sample a number, or a tensor with a weight for each of its tokens
        as a label (the first, which nothing predicts, counts nowhere); default 1 each. On the CPU.
        """
        count = len(self.sample_paths)
        if sample_weights is None:
            sample_weights = [1.0] * count
        if len(sample_weights) != count:
            raise ValueError(f"sample_weights has {len(sample_weights)} entries; allowed: {count}")
        of_token = torch.zeros(self.total_seqlen, dtype=torch.float64, device=_HOST)
        for i, weights in enumerate(sample_weights):
            rows = self._rows_of_sample(i)
            if isinstance(weights, torch.Tensor) and weights.dim():
                if weights.shape != rows.shape:
                    raise ValueError(
                        f"sample_weights[{i}] has shape {list(weights.shape)}; allowed: "
                        f"[{len(rows)}], a weight for each token of the sample"
                    )
                of_token[rows] += weights.detach().to(_HOST, torch.float64)
            else:
                of_token[rows] += float(weights)
        weights = of_token.new_zeros(self.total_seqlen, self.branches)
        rows, branches, tokens = self._predicted(weights.device)
        weights[rows, branches] = of_token[tokens]
        return weights.to(dtype)

    def of_samples(self, values: torch.Tensor, plan: AnyPlan | None = None) -> list[torch.Tensor]:
        """values [total_seqlen, branches], such as log-probabilities of labels, by sample: of each
        the values of its second token, third token, ... Gradients come through.

        plan: that of the batch; values [rows, branches] or [1, rows, branches] are then of this
        rank's rows. Collective: each rank gets all samples. Of a loss that each rank makes of them
        gradients of ranks add up.
        """
        if plan is not None:
            values = bound_of(plan).undispatch(values.reshape(-1, values.shape[-1]))
            values = values[: self.total_seqlen]
        wanted = (self.total_seqlen, self.branches)
        if tuple(values.shape) != wanted:
            raise ValueError(f"values has shape {list(values.shape)}; allowed: {list(wanted)}")
        found = []
        for i in range(len(self.sample_paths)):
            tokens = self._rows_of_sample(i)[1:]
            rows, branches = (t[tokens].to(values.device) for t in (self._predictor, self._branch))
            found.append(values[rows, branches])
        return found

    def _rows_of_sample(self, sample: int) -> torch.Tensor:
        pieces = [torch.empty(0, dtype=torch.int64, device=_HOST)]
        for node in self.sample_paths[sample]:
            pieces.append(torch.arange(*self.node_ranges[node], device=_HOST))
        return torch.cat(pieces)

    def _predicted(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, branches and tokens of everything that is predicted."""
        tokens = (self._predictor >= 0).nonzero().view(-1)
        found = self._predictor[tokens], self._branch[tokens], tokens
        return tuple(tensor.to(device) for tensor in found)


def branch_log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of labels [rows, branches] under logits [rows, vocabulary] -> [rows,
    branches], in float32 or wider; 0 where the label is -100.
    """
    for name, tensor in (("logits", logits), ("labels", labels)):
        check_kind(name, tensor, torch.Tensor, "a torch.Tensor")
    if labels.shape[:-1] != logits.shape[:-1]:
        raise ValueError(
            f"labels has shape {list(labels.shape)}; allowed: {list(logits.shape[:-1])} and the "
            "branches, as logits"
        )
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    is_label = labels != IGNORED_LABEL
    return wide.gather(-1, labels.clamp(min=0)).where(is_label, wide.new_zeros(()))


def branch_loss(
    logits: torch.Tensor, labels: torch.Tensor, loss_weights: torch.Tensor
) -> torch.Tensor:
    """The negative weighted sum of branch_log_probs: of this rank's rows the part of the samples'
    loss that ranks add up to. loss_weights as labels.
    """
    found = branch_log_probs(logits, labels)
    return -(found * loss_weights.to(found.dtype)).sum()
