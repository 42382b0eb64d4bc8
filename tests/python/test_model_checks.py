# SPDX-License-Identifier: Apache-2.0
"""Which models of transformers check_model and calls with a plan refuse, and by which words."""

import pytest

pytest.importorskip("transformers", minversion="5")

import torch
import transformers

import model_zoo
from magi_attention.integrations._mask_spec import AttnMaskSpec
from magi_attention.integrations._model_plans import make_plan
from magi_attention.integrations.transformers import check_model, register, shard

SIZES = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
    vocab_size=64, max_position_embeddings=64, pad_token_id=0,
)  # fmt: skip


def made(kind, **changes):
    if isinstance(kind, str):
        kind = getattr(transformers, kind)
    register()
    torch.manual_seed(3)
    model = kind(kind.config_class(**{**SIZES, **changes})).eval()
    model.set_attn_implementation("magi")
    return model


HEAD = "has a head whose labels are not those of the next tokens"
BOTH = "attends in both directions by"


@pytest.mark.parametrize(
    "kind, changes, words",
    [
        ("LlamaForTokenClassification", {}, HEAD),
        ("LlamaForSequenceClassification", {}, HEAD),
        ("LlamaForQuestionAnswering", {}, HEAD),
        ("GPT2DoubleHeadsModel", {}, HEAD),
        ("BertForMaskedLM", {}, HEAD),
        ("ModernBertForMaskedLM", {}, HEAD),
        ("BertModel", {}, "has a BertPooler at pooler"),
        ("BertLMHeadModel", {}, f"{BOTH} its BertSelfAttention"),
        ("RobertaForCausalLM", {}, f"{BOTH} its RobertaSelfAttention"),
        ("LlamaForCausalLM", {"is_causal": False}, f"{BOTH} its configuration is_causal=False"),
        (
            "Gemma3ForCausalLM", {"use_bidirectional_attention": True, "head_dim": 8},
            f"{BOTH} its Gemma3Attention",
        ),
    ],
)  # fmt: skip
def test_no_causal_language_models(kind, changes, words):
    with pytest.raises(ValueError, match=f"{kind} {words}.*; allowed: "):
        check_model(made(kind, **changes))


def test_causal_language_models():
    for kind, changes in (
        ("LlamaModel", {}),
        ("BertLMHeadModel", {"is_decoder": True}),
        ("Gemma3ForCausalLM", {"head_dim": 8}),
    ):
        check_model(made(kind, **changes))


def documents(kind: str):
    """A plan of packed documents; of "full" ones all rows of a document see each other."""
    return make_plan(AttnMaskSpec.varlen(model_zoo.DOCUMENTS, kind == "causal"), (4, 4, 8), None)


class TestCalls:
    """Calls of models that check_model has not seen."""

    def test_encoders_under_full_documents(self):
        model, (ids, positions) = made("BertForMaskedLM"), model_zoo.batch()
        arguments = shard(documents("full"), ids, None, positions)
        found = model(**arguments, labels=ids)
        alone = [model(input_ids=part) for part in ids.split(model_zoo.DOCUMENTS, 1)]
        wanted = torch.cat([one.logits for one in alone], 1)
        assert (found.logits - wanted).abs().max() < 1e-5
        loss = torch.nn.functional.cross_entropy(wanted[0], ids[0])
        assert abs(found.loss - loss) < 1e-5

    @pytest.mark.parametrize("kind", ["BertForMaskedLM", "LlamaForTokenClassification"])
    def test_shifted_labels(self, kind):
        ids, positions = model_zoo.batch()
        with pytest.raises(ValueError, match=f"{kind} {HEAD}"):
            made(kind)(**shard(documents("full"), ids, ids, positions))

    @pytest.mark.parametrize(
        "kind, changes", [("BertForMaskedLM", {}), ("LlamaForCausalLM", {"is_causal": False})]
    )
    def test_directions(self, kind, changes):
        ids, positions = model_zoo.batch()
        model, plan = made(kind, **changes), documents("full")
        model(**shard(plan, ids, None, positions))
        pattern = r"Attention attends in both directions, but magi_plan"
        with pytest.raises(ValueError, match=pattern):
            model(**shard(documents("causal"), ids, None, positions))

    def test_labels_that_are_not_shifted(self, ranks):
        ranks.run(2, labels_alone)

    def test_tables_by_largest_position(self):
        rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
        model, (ids, positions) = made("LlamaForCausalLM", rope_parameters=rope), model_zoo.batch()
        arguments = shard(documents("causal"), ids, None, positions)
        with pytest.raises(ValueError, match=r"LlamaForCausalLM has rotary tables .* check_model"):
            model(**arguments)
        check_model(model)
        model(**arguments)


def labels_alone(group):
    """A model would shift them within a rank's rows."""
    ids, positions = model_zoo.batch()
    model = made("LlamaForCausalLM")
    plan = model_zoo.plans_of_documents(model, model_zoo.DOCUMENTS, group)
    arguments = shard(plan, ids, None, positions)
    pattern = "LlamaForCausalLM would shift labels by a row of the rank"
    with pytest.raises(ValueError, match=pattern):
        model(**arguments, labels=arguments["input_ids"])


class Balanced(transformers.LlamaForCausalLM):
    """A model with a loss of its own over rows."""

    def forward(self, *arguments, position_ids=None, **keywords):
        out = super().forward(*arguments, position_ids=position_ids, **keywords)
        z_loss = out.logits.logsumexp(-1).square().mean()
        out.loss = z_loss
        return out


class OldLoss(transformers.LlamaForCausalLM):
    """A model that shifts labels by itself, as many did before transformers had shift_labels."""

    def forward(self, input_ids, position_ids=None, labels=None, **keywords):
        return self.model(input_ids=input_ids, position_ids=position_ids, **keywords)


class TestOwnLosses:
    def test_over_rows(self):
        pattern = r"Balanced computes z_loss over the rows of a rank \(Balanced\); allowed: "
        with pytest.raises(ValueError, match=pattern):
            check_model(made(Balanced))
        check_model(made(Balanced, z_loss_coefficient=0.0))

    def test_batch_norms(self):
        model = made("LlamaForCausalLM")
        model.model.norm = torch.nn.BatchNorm1d(32)
        with pytest.raises(ValueError, match=r"has a BatchNorm1d at model\.norm"):
            check_model(model)

    def test_labels(self):
        model, (ids, _) = made(OldLoss), model_zoo.batch()
        check_model(model)
        for given in ((model,), ()):
            with pytest.raises(ValueError, match="OldLoss computes its loss without shift_labels"):
                model(**shard(documents("causal"), ids, ids, None, *given))
        model(**shard(documents("causal"), ids, None, None, model))
