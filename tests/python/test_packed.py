# SPDX-License-Identifier: Apache-2.0
"""Packed sequences and prefix trees for any model."""

import dataclasses

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import packed_cases as cases
from magi_attention import attention
from magi_attention.integrations import packed
from magi_attention.integrations.packed import AttnMaskSpec, MagiState, PrefixTree
from ranks import over, refuses


@pytest.fixture(autouse=True)
def nothing_active():
    packed.set_active_cp_group(None)
    packed.set_active_attn_spec(None)
    yield
    packed.set_active_cp_group(None)
    packed.set_active_attn_spec(None)


LENGTHS = [(1,), (2,), (3, 2), (17,), (17, 30, 13), (383,), (100, 1, 0, 282)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_one_process(lengths):
    cases.packed_documents(None, lengths)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_ranks(ranks, size, lengths):
    ranks.run(size, cases.packed_documents, lengths)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_windows(ranks, size):
    ranks.run(size, cases.packed_documents, (17, 30, 13), 4)
    ranks.run(size, cases.layers_of_two_masks)


def test_random_lengths(ranks, rng):
    for size in (1, 2, 4):
        lengths = tuple(rng.randrange(1, 40) for _ in range(rng.randrange(1, 9)))
        ranks.run(size, cases.packed_documents, lengths)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_prefix_trees(ranks, size):
    ranks.run(size, cases.prefix_tree)
    ranks.run(size, cases.prefix_tree, True)


def test_prefix_tree_on_one_process():
    cases.prefix_tree(None)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_state(ranks, size):
    ranks.run(size, cases.state_of_a_training)


@over(3)
def test_other_batches(group):
    """Batches that are equally long on all ranks, where each rank would take its rows of its own:
    refused under plans that are new and that have run.
    """
    lengths = (17, 13)
    batch, spec = cases.batch_of(lengths), AttnMaskSpec.varlen(lengths)
    sequence = {name: batch[name][None] for name in ("input_ids", "labels")}
    tree, ids = PrefixTree([20, 4, 6], [[0, 1], [0, 2]]), {"input_ids": batch["input_ids"]}
    for prepare, given in (
        (lambda b: packed.magi_prepare_packed_cp(cases.HEADS, b, group), batch),
        (lambda b: packed.magi_prepare_batch(cases.HEADS, b, group, spec=spec), sequence),
        (lambda b: packed.magi_prepare_prefix_tree(cases.HEADS, b, tree, group), ids),
    ):
        for name in [name for name in ("input_ids", "labels") if name in given]:
            other = {**given, name: given[name] + (dist.get_rank(group) == 2)}
            pattern = r"ranks \[2\] of cp_group are given other samples than rank 0; allowed: the "
            refuses(lambda: prepare(other), ValueError, pattern)
            assert prepare(given)[0]["input_ids"].numel()


class TestSpecs:
    def test_causal_and_varlen(self):
        assert AttnMaskSpec.causal(9) == AttnMaskSpec([[0, 9]], [[0, 9]], ["causal"], 9)
        spec = AttnMaskSpec.varlen([3, 0, 4], causal=False)
        assert spec == AttnMaskSpec([[0, 3], [3, 7]], [[0, 3], [3, 7]], ["full"] * 2, 7)
        assert spec.fingerprint() == dataclasses.replace(spec).fingerprint()
        assert len({spec.fingerprint(), AttnMaskSpec.varlen([3, 4]).fingerprint()}) == 2
        assert hash(spec.fingerprint())

    @pytest.mark.parametrize("window", [(-2, 0), (3, -2), (3,)])
    def test_windows_that_are_none(self, window):
        with pytest.raises(ValueError, match=r"window_size(\[\d\])? is"):
            AttnMaskSpec.varlen([3, 4], window_size=window)

    def test_prefix_tree(self):
        spec, ranges = AttnMaskSpec.prefix_tree([4, 2, 3], [[0, 1], [0, 2]])
        assert spec.total_seqlen == 9
        assert ranges == [[[0, 4], [4, 6]], [[0, 4], [6, 9]]]
        shown = set(zip(map(tuple, spec.q_ranges), map(tuple, spec.k_ranges), spec.mask_types))
        assert shown == {
            ((0, 4), (0, 4), "causal"), ((4, 6), (0, 4), "full"), ((4, 6), (4, 6), "causal"),
            ((6, 9), (0, 4), "full"), ((6, 9), (6, 9), "causal"),
        }  # fmt: skip

    @pytest.mark.parametrize(
        "arguments, pattern",
        [
            (([3, 2], [[0, 2]]), r"sample_paths\[0\]\[1\] is 2; allowed: 0 to 1"),
            (([3, -2], [[0]]), r"node_lengths\[1\] is -2"),
            (([3, 2], [[0, 1, 0]]), r"sample_paths\[0\] holds node 0 twice"),
            (([3, 2], [[0, 1], [1]]), r"node 1 comes after nodes \[\] in sample_paths\[1\]"),
        ],
    )
    def test_what_is_no_tree(self, arguments, pattern):
        with pytest.raises(ValueError, match=pattern):
            AttnMaskSpec.prefix_tree(*arguments)


class TestPrefixTree:
    tree = PrefixTree([2, 1, 2, 3], [[0, 1], [0, 2]])

    def test_rows(self):
        ids = torch.tensor([10, 11, 12, 13, 14, 7, 7, 7])
        assert self.tree.position_ids.tolist() == [0, 1, 2, 2, 3, 0, 1, 2]
        assert self.tree.branches == 2
        labels = self.tree.labels(ids)
        assert torch.equal(labels, self.tree.labels(ids[None]))
        nothing = [-100, -100]
        assert labels.tolist() == [
            [11, -100], [12, 13], nothing, [14, -100], nothing, nothing, nothing, nothing
        ]  # fmt: skip
        weights = self.tree.loss_weights([1.0, torch.tensor([8.0, 2.0, 4.0, 5.0])])
        assert weights[:4].tolist() == [[3, 0], [1, 4], [0, 0], [5, 0]] and not weights[4:].any()
        assert self.tree.loss_weights().sum() == 5

    def test_errors(self):
        with pytest.raises(ValueError, match=r"input_ids has shape \[3\]; allowed: \[8\]"):
            self.tree.labels(torch.zeros(3))
        with pytest.raises(ValueError, match="sample_weights has 1 entries; allowed: 2"):
            self.tree.loss_weights([1.0])
        with pytest.raises(
            ValueError, match=r"sample_weights\[0\] has shape \[2\]; allowed: \[3\]"
        ):
            self.tree.loss_weights([torch.zeros(2), 1.0])
        with pytest.raises(ValueError, match=r"values has shape \[8\]; allowed: \[8, 2\]"):
            self.tree.of_samples(torch.zeros(8))
        with pytest.raises(ValueError, match=r"labels has shape \[8, 2\]; allowed: \[3\] and"):
            packed.branch_log_probs(torch.zeros(3, 5), self.tree.labels(torch.zeros(8)))


class TestAttentionFunction:
    """On one process; a batch's mask is the first of what is given, what is active, causal."""

    q, k, v = (torch.randn(2, 15, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))

    def wanted(self, spec):
        rows = (tensor.flatten(0, 1) for tensor in (self.q, self.k, self.v))
        return cases.dense_attend(spec)(*rows).view(2, 15, 4, 8)

    def close(self, found, wanted):
        assert found.shape == wanted.shape and (found - wanted).abs().max() < 1e-12

    def test_masks(self):
        attend = packed.make_magi_attn_func()
        each = AttnMaskSpec.varlen([15, 15])
        tree, _ = AttnMaskSpec.prefix_tree([10, 5, 15], [[0, 1], [0, 2]])
        bounds = torch.tensor([0, 7, 30], dtype=torch.int32)
        call = (self.q, self.k, self.v)
        self.close(attend(*call), self.wanted(each))  # torch's
        self.close(attend(*call, magi_attn_spec=tree), self.wanted(tree))
        self.close(attend(*call, cu_seqlens=bounds), self.wanted(AttnMaskSpec.varlen([7, 23])))
        narrow = AttnMaskSpec.varlen([15, 15], window_size=(3, 0))
        self.close(attend(*call, window_size=(3, 0)), self.wanted(narrow))
        packed.set_active_attn_spec(tree)
        assert packed.get_active_attn_spec() is tree
        self.close(attend(*call), self.wanted(tree))
        self.close(attend(*call, magi_attn_spec=each), self.wanted(each))

    @pytest.mark.parametrize("rows", [1, 4, 15, 20])
    def test_the_diagonal_ends_with_the_last_rows(self, rows):
        """A decode step sees all keys; of more queries than keys the first see none."""
        q = torch.randn(2, rows, 4, 8, dtype=torch.float64, requires_grad=True)
        found = packed.make_magi_attn_func()(q, self.k, self.v)
        found.sum().backward()
        assert q.grad.isfinite().all()
        for batch in range(2):
            sides = q[batch].detach(), self.k[batch], self.v[batch]
            self.close(found[batch].detach(), attention(*sides, "causal"))

    @pytest.mark.parametrize("name", ["is_causal", "causal"])
    def test_what_is_not_causal_by_a_mask_of_the_call(self, name):
        both = AttnMaskSpec.varlen([15, 15], causal=False)
        call = self.q, self.k, self.v
        found = packed.make_magi_attn_func()(*call, magi_attn_spec=both, **{name: False})
        self.close(found, self.wanted(both))

    def test_layouts_and_scale(self):
        attend = packed.make_magi_attn_func(softmax_scale=0.2)
        q, k, v = self.q[0], self.k[0], self.v[0]
        heads = (tensor.transpose(0, 1) for tensor in (q, k, v))
        wanted = F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.2, enable_gqa=True)
        self.close(attend(q, k, v), wanted.transpose(0, 1))
        self.close(attend(q, k, v, magi_attn_spec=AttnMaskSpec.causal(15)), wanted.transpose(0, 1))
        whole = torch.cat((q, k, v), 1)  # rows with a stride
        q, k, v = whole.split((4, 2, 2), 1)
        found = attend(q, k, v, magi_attn_spec=AttnMaskSpec.causal(15))
        self.close(found, wanted.transpose(0, 1))

    @pytest.mark.parametrize(
        "options, error, pattern",
        [
            ({"attention_mask": torch.ones(1)}, ValueError, "attention_mask is given"),
            ({"dropout": 0.1}, ValueError, "dropout is 0.1; allowed: 0"),
            ({"is_causal": False}, ValueError, "is_causal is False"),
            ({"attn_mask_type": "arbitrary"}, ValueError, "attn_mask_type is 'arbitrary'"),
            ({"core_attention_bias": 1}, TypeError, "unexpected keyword 'core_attention_bias'"),
            ({"cu_seqlens": torch.tensor([0, 29])}, ValueError, "has documents of 29 rows"),
            ({"cu_seqlens": torch.tensor([3, 30])}, ValueError, "allowed: bounds that grow from 0"),
            (
                {"cu_seqlens_q": torch.tensor([0, 30]), "cu_seqlens_kv": torch.tensor([0, 15, 30])},
                ValueError, "cu_seqlens_kv is not cu_seqlens_q",
            ),
            (
                {"magi_attn_spec": AttnMaskSpec.causal(30), "window_size": (8, 0)},
                ValueError, r"window_size is \(8, 0\), but magi_attn_spec shows keys 29 rows",
            ),
        ],
        ids=str,
    )  # fmt: skip
    def test_refusals(self, options, error, pattern):
        with pytest.raises(error, match=pattern):
            packed.make_magi_attn_func()(self.q, self.k, self.v, **options)


class TestBatches:
    batch = cases.batch_of((5, 7))

    @pytest.mark.parametrize(
        "changes, pattern",
        [
            ({"labels": torch.zeros(11)}, r"labels has shape \[11\]; allowed: \[12\]"),
            ({"cu_seqlens": torch.tensor([0, 11])}, "cu_seqlens has documents of 11 rows"),
            ({"cu_seqlens": None}, "the batch has no cu_seqlens"),
            ({"input_ids": None}, "the batch has .*cu_seqlens; allowed: input_ids among them"),
        ],
    )
    def test_packed(self, changes, pattern):
        with pytest.raises(ValueError, match=pattern):
            packed.magi_prepare_packed_cp(cases.HEADS, {**self.batch, **changes}, None)

    def test_of_transformers(self):
        ids = torch.zeros(2, 6, dtype=torch.int64)
        with pytest.raises(ValueError, match=r"input_ids has shape \[2, 6\]; allowed: \[1, rows\]"):
            packed.magi_prepare_batch(cases.HEADS, {"input_ids": ids}, None)
        mask = torch.tensor([[1, 1, 1, 0, 0, 1]])
        with pytest.raises(ValueError, match="attention_mask hides 2 rows"):
            packed.magi_prepare_batch(
                cases.HEADS, {"input_ids": ids[:1], "attention_mask": mask}, None
            )
        for changes, pattern in (
            ({"attention_mask": torch.tensor([[1, 1, 1, 2, 2, 1]])}, "a document in two places"),
            ({"completion_mask": ids[:1]}, "the batch has completion_mask; allowed: labels of"),
            ({"position_ids": torch.tensor([[0, 1, 2, 5, 6, 7]])}, "numbers before row 3"),
        ):
            with pytest.raises(ValueError, match=pattern):
                packed.magi_prepare_batch(cases.HEADS, {"input_ids": ids[:1], **changes}, None)
        with pytest.raises(ValueError, match="input_ids has 6 rows; allowed: 7"):
            packed.magi_prepare_batch(
                cases.HEADS, {"input_ids": ids[:1]}, None, spec=AttnMaskSpec.causal(7)
            )
        with pytest.raises(ValueError, match="object has no num_attention_heads"):
            packed.magi_prepare_batch(object(), {"input_ids": ids[:1]}, None)

    @pytest.mark.parametrize(
        "name, value",
        [
            ("labels", torch.zeros(1, 8)),
            ("loss_mask", torch.ones(1, 8)),
            ("position_ids", torch.arange(8)),
            ("cu_seqlens", torch.tensor([0, 4, 8])),
            ("attention_mask", torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]])),
            ("completion_mask", torch.ones(1, 8)),
        ],
    )
    def test_of_a_tree(self, name, value):
        batch = {"input_ids": torch.zeros(1, 8, dtype=torch.int64), name: value}
        with pytest.raises(ValueError, match=f"^(the batch has )?{name}( numbers documents)?; all"):
            packed.magi_prepare_prefix_tree(cases.HEADS, batch, TestPrefixTree.tree, None)

    def test_state_that_is_off(self):
        state = packed.setup_magi({"model": {"attn_implementation": "sdpa"}}, None)
        assert state == MagiState() and not state.hf_dispatch
        assert state.prepare_llm_batch(None, self.batch)[1] is self.batch
        assert packed.is_magi_available() and packed.get_cp_group(None) is None
        on = MagiState(True, True)
        with pytest.raises(ValueError, match="num_chunks is 2; allowed: 1"):
            on.prepare_llm_batch(cases.HEADS, self.batch, num_chunks=2)
