# SPDX-License-Identifier: Apache-2.0
"""Attention for Megatron-LM, beside that of megatron-core."""

import pytest
import torch

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import dense
import megatron_cases as cases
from megatron_cases import AttnMaskType, ours
from test_docs import blocks

# Megatron makes its groups on all processes, so that every case runs on all four.
ALL = 4


@pytest.mark.parametrize(
    "size, embedding",
    [(1, "rope"), (2, "rope"), (4, "rope"), (2, "learned_absolute"), (1, "yarn")],
)
def test_packed_documents(ranks, size, embedding):
    ranks.run(ALL, cases.agrees, size, embedding)


@pytest.mark.parametrize("size", [1, 2])
def test_windows(ranks, size):
    ranks.run(ALL, cases.with_windows, size)


def test_training(ranks):
    ranks.run(ALL, cases.training)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_several_tokens(ranks, size):
    ranks.run(ALL, cases.several_tokens, size)


@pytest.mark.parametrize("size", [1, 2])
def test_padding(ranks, size):
    ranks.run(ALL, cases.padded_and_batches, size)
    ranks.run(ALL, cases.documents_padded_in_place, size)


def test_batches_of_megatron(ranks):
    ranks.run(ALL, cases.without_preparation)
    ranks.run(ALL, cases.without_a_group)
    ranks.run(ALL, cases.several_ranks_without_a_plan)
    ranks.run(ALL, cases.other_batches)


def test_example(ranks):
    (code,) = (code for code in blocks("docs/integrations.md") if "megatron" in code)
    ranks.run(ALL, cases.example_of_the_docs, code)


class TestCoreAttention:
    q, k, v = (torch.randn(12, 1, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))

    def test_sinks_and_maxima(self):
        mask = dense.Mask([(0, 12)], [(0, 12)], [1], 12, 12)
        rows = [tensor[:, 0] for tensor in (self.q, self.k, self.v)]
        for kind, sink in (("off-by-one", torch.zeros(1, 4)), ("learnable", torch.randn(1, 4))):
            core = cases.core(softmax_type=kind, log_max_attention_logit=True)
            if kind == "learnable":
                assert [name for name, _ in core.named_parameters()] == ["softmax_offset"]
                core.softmax_offset.data.copy_(sink[0])
            else:
                assert not core.state_dict()
            found = core(self.q, self.k, self.v, None)
            wanted, _, maxima = dense.attention(*rows, mask, sink.double())
            assert found.shape == (12, 1, 32)
            assert (found.view(12, 4, 8) - wanted).abs().max() < 1e-6
            assert (core.current_max_attn_logits - maxima).abs().max() < 1e-6
            core(2 * self.q, self.k, self.v, None)
            assert (
                core.current_max_attn_logits - torch.maximum(maxima, 2 * maxima)
            ).abs().max() < 1e-6

    @pytest.mark.parametrize(
        "changes, pattern",
        [
            ({"attention_dropout": 0.1}, "attention_dropout is 0.1; allowed: 0"),
            ({"softmax_type": "other"}, "softmax_type is 'other'"),
        ],
    )
    def test_configs(self, changes, pattern):
        with pytest.raises(ValueError, match=pattern):
            cases.core(**changes)

    def test_arguments(self):
        core = cases.core()
        visible = torch.zeros(1, 1, 12, 12, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"attention_mask of shape \[1, 1, 12, 12\] is not"):
            core(self.q, self.k, self.v, visible)
        with pytest.raises(ValueError, match="attention_bias is given; allowed: None"):
            core(self.q, self.k, self.v, None, attention_bias=visible)
        settings = cases.config()
        with pytest.raises(ValueError, match="attention_type is 'cross'; allowed: 'self'"):
            ours.MagiCoreAttention(settings, 1, AttnMaskType.causal, "cross")
        with pytest.raises(ValueError, match="spec has no core_attention"):
            ours.with_magi_attention(None)
        local = ours.prepare_batch({"tokens": torch.zeros(1, 12).long()}, settings, causal=False)
        params = local["packed_seq_params"]
        pattern = "attn_mask_type is causal, but prepare_batch was called with causal=False"
        with pytest.raises(ValueError, match=pattern):
            core(self.q, self.k, self.v, None, packed_seq_params=params)
        found = core(self.q, self.k, self.v, None, AttnMaskType.no_mask, packed_seq_params=params)
        mask = dense.Mask([(0, 12)], [(0, 12)], [0], 12, 12)
        wanted = dense.attention(*(t[:, 0] for t in (self.q, self.k, self.v)), mask)[0]
        assert (found.view(12, 4, 8) - wanted).abs().max() < 1e-12
        with pytest.raises(ValueError, match="attention_mask is given; allowed: None, as the plan"):
            core(self.q, self.k, self.v, visible, AttnMaskType.no_mask, packed_seq_params=params)
        with pytest.raises(ValueError, match="shifts is 1; allowed: -1"):
            ours.roll_tensor(torch.zeros(1, 12), 1, -1, None, params)


@pytest.mark.parametrize(
    "changes, pattern",
    [
        ({"tokens": None}, "the batch has .*; allowed: tokens among them"),
        ({"tokens": torch.zeros(12)}, r"tokens has shape \[12\]; allowed: \[batch, rows\]"),
        ({"labels": torch.zeros(1, 3)}, r"labels has shape \[1, 3\]; allowed: \[1, 12\]"),
        ({"cu_seqlens": torch.tensor([0, 13])}, "cu_seqlens ends at 13; allowed: up to 12"),
        ({"cu_seqlens": torch.tensor([0, 9, 5])}, r"cu_seqlens\[2\] - cu_seqlens\[1\] is -4"),
        (
            {"cu_seqlens": torch.tensor([0, 9]), "cu_seqlens_padded": torch.tensor([0, 8])},
            r"cu_seqlens\[1\] - cu_seqlens\[0\] is 9; allowed: 0 to 8",
        ),
        (
            {"cu_seqlens": torch.tensor([0, 9]), "attention_mask": torch.ones(1, 12)},
            "attention_mask is given; allowed: None beside cu_seqlens",
        ),
        ({"attention_mask": torch.tensor([[1] * 5 + [2] * 5 + [1] * 2])}, "in two places"),
        ({"attention_mask": torch.full((1, 12), 0.5)}, "attention_mask holds 0.5"),
        ({"attention_mask": torch.full((1, 1, 12, 12), -1)}, "attention_mask holds more than 0"),
        ({"packed_seq_params": 1}, "packed_seq_params is given; allowed: cu_seqlens"),
        ({"seq_lengths": [5, 7]}, "seq_lengths is given; allowed: cu_seqlens"),
        ({"attention_mask": torch.ones(1, 11)}, r"attention_mask has shape \[1, 11\]"),
        (
            {"attention_mask": torch.zeros(1, 1, 12, 12, dtype=torch.bool)},
            "attention_mask shows other pairs than causal documents",
        ),
    ],
    ids=str,
)
def test_batches_that_are_refused(changes, pattern):
    batch = {"tokens": torch.zeros(1, 12, dtype=torch.long), **changes}
    with pytest.raises(ValueError, match=pattern):
        ours.prepare_batch(batch, cases.config())


def test_mask_that_numbers_documents():
    ids = torch.arange(12).view(2, 6)
    mask = torch.tensor([[1, 1, 2, 2, 2, 0], [0, 3, 3, 3, 3, 3]])
    local = ours.prepare_batch({"tokens": ids, "attention_mask": mask}, cases.config())
    assert local["packed_seq_params"].documents.lengths == (2, 3, 5)
    assert local["tokens"].tolist() == [[*range(5), *range(7, 12)]]


def test_padded_bounds():
    """As NeMo and Megatron-Bridge pad them."""
    ids, bounds = torch.arange(12)[None], torch.tensor([[0, 5, 12, -1, -1]])
    batch = {"tokens": ids, "cu_seqlens": bounds, "cu_seqlens_argmin": torch.tensor(3)}
    local = ours.prepare_batch(batch, cases.config())
    assert local["packed_seq_params"].documents.lengths == (5, 7)
    assert "cu_seqlens_argmin" not in local


def test_padding_has_no_loss_without_a_loss_mask():
    """Where a batch has labels alone, rows between documents and rows added to it count nowhere."""
    ids = torch.arange(12)[None]
    batch = {
        "tokens": ids, "labels": ids, "cu_seqlens": torch.tensor([0, 3, 7]),
        "cu_seqlens_padded": torch.tensor([0, 4, 12]),
    }  # fmt: skip
    local = ours.prepare_batch(batch, cases.config())
    assert local["loss_mask"].tolist() == [[1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0]]
    assert local["loss_mask"].dtype == torch.float32
    assert "loss_mask" not in ours.prepare_batch({"tokens": ids}, cases.config())
    tensor_ranks = cases.config(sequence_parallel=True, tensor_model_parallel_size=2)
    odd = ours.prepare_batch({"tokens": ids[:, :7], "labels": ids[:, :7]}, tensor_ranks)
    assert odd["loss_mask"].tolist() == [[1] * 7 + [0]]
