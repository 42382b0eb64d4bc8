# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models with attn_implementation="magi" against "sdpa" and "eager"."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5")

import itertools

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import transformers_cases as cases
from magi_attention.integrations import packed
from magi_attention.integrations.transformers import attention, check_model, register, shard
from transformers_cases import BOUNDS, ROWS, WINDOW


@pytest.fixture(autouse=True)
def fresh_compiler():
    """A compiler that has failed in a test would skip the same code in the next."""
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_one_process(name):
    cases.agrees(None, name)


def test_gradient_checkpointing():
    cases.agrees(None, "llama", checkpointed=True)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_compiled(name):
    cases.agrees(None, name, compiled=True)


@pytest.mark.parametrize("size, name", [(2, "llama"), (3, "gpt_oss"), (4, "mistral")])
def test_ranks(ranks, size, name):
    ranks.run(size, cases.agrees, name)


@pytest.mark.parametrize("change", ["checkpointed", "compiled"])
def test_ranks_recompute_and_compile(ranks, change):
    checkpointed, compiled = change == "checkpointed", change == "compiled"
    ranks.run(2, cases.agrees, "llama", checkpointed, compiled)


@pytest.mark.parametrize(
    "case",
    [cases.loss_of_transformers, cases.over_keys, cases.other_samples, cases.rows_from_the_end],
)
def test_loss_and_keys(ranks, case):
    ranks.run(2, case)


def test_models_that_attend_otherwise_again():
    """Whose attention was ours at an earlier check."""
    llama = cases.model("llama", "magi")
    check_model(llama)
    llama.set_attn_implementation("sdpa")
    ids, labels, positions = cases.batch()
    with pytest.raises(ValueError, match="LlamaForCausalLM attends through 'sdpa'"):
        shard(cases.plan().bind(), ids, labels, positions, llama)


def test_plans_with_an_idle_rank(ranks):
    ranks.run(3, cases.plans_with_an_idle_rank)


@pytest.fixture(scope="module")
def llama():
    return cases.model("llama", "magi")


class TestWithoutPlan:
    """What "sdpa" gives, masks included."""

    @pytest.mark.parametrize("name", ["llama", "mistral"])
    def test_masks(self, name):
        ids, _, positions = cases.batch()
        ids = ids.repeat(2, 1)
        padding = torch.ones_like(ids)
        padding[1, :7] = 0
        visible = torch.rand(2, 1, ROWS, ROWS) < 0.5
        visible |= torch.eye(ROWS, dtype=torch.bool)
        ours, theirs = cases.model(name, "magi"), cases.model(name, "sdpa")
        for arguments in (
            {},
            {"position_ids": positions},
            {"attention_mask": padding},
            {"attention_mask": padding[:1].repeat(2, 1)},
            {"attention_mask": visible},
        ):
            found, wanted = (m(input_ids=ids, **arguments).logits for m in (ours, theirs))
            assert torch.equal(found, wanted), arguments.keys()

    def test_active_plan(self, llama):
        """Rows of a plan that is active are not attended to as if there were none."""
        bound = cases.plan().bind()
        arguments = shard(bound, cases.batch()[0])
        ids, pattern = arguments["input_ids"], r"(?s)magi_plan is missing where Llama.*active plan"
        packed.set_active_plan(bound)
        for call in (llama, torch.compile(llama, backend="eager")):
            with pytest.raises(Exception, match=pattern):
                call(input_ids=ids)
        llama(input_ids=ids[:, :9])
        llama(**arguments)
        packed.set_active_plan(None)
        llama(input_ids=ids)

    def test_generation(self):
        ids = cases.batch()[0][:, :9]
        found, wanted = (
            cases.model("mistral", name).generate(ids, max_new_tokens=6, do_sample=False)
            for name in ("magi", "sdpa")
        )
        assert torch.equal(found, wanted)


class TestRefusals:
    """A mask that the plan does not hold is named."""

    def refuses(self, model, pattern, error=ValueError, plan=None, **changes):
        bound = cases.plan().bind()
        arguments = shard(bound, *cases.batch())
        arguments.update(changes, magi_plan=bound if plan is None else plan)
        with pytest.raises(error, match=pattern):
            model(**arguments)

    def test_padding(self, llama):
        bound = cases.plan().bind()
        padding = torch.ones(1, bound.local_rows, dtype=torch.long)
        arguments = shard(bound, *cases.batch())
        assert llama(**arguments, attention_mask=padding).logits.isfinite().all()
        padding[0, -5:] = 0
        self.refuses(llama, "attention_mask, which hides 5 rows", attention_mask=padding)

    def test_numbered_documents(self, llama):
        numbers = torch.ones(1, cases.plan().padded_seqlen, dtype=torch.long)
        numbers[0, 30:] = 2
        self.refuses(
            llama, "attention_mask numbers documents beside magi_plan", attention_mask=numbers
        )

    @pytest.mark.parametrize("name", ["cu_seq_lens_q", "seq_idx", "seq_lengths", "completion_mask"])
    def test_documents_beside_a_plan(self, llama, name):
        for _ in range(2):  # each call is asked
            self.refuses(
                llama, f"LlamaForCausalLM was given {name} beside magi_plan", **{name: [[0, 9]]}
            )
        call = torch.compile(llama, fullgraph=True, backend="eager")
        self.refuses(call, f"(?s){name} beside magi_plan", Exception, **{name: [[0, 9]]})

    def test_dense_mask(self, llama):
        mask = torch.ones(1, 1, ROWS, ROWS, dtype=torch.bool)
        self.refuses(llama, r"attention_mask is a tensor of shape \[1, 1, 60, 60\]",
                     attention_mask=mask)  # fmt: skip

    def test_padding_when_compiled(self, llama):
        padding = torch.ones(1, cases.plan().padded_seqlen, dtype=torch.long)
        call = torch.compile(llama, fullgraph=True, backend="eager")
        self.refuses(call, "(?s)Observed exception.*attention_mask", Exception,
                     attention_mask=padding)  # fmt: skip

    def test_window(self):
        longest = max(end - begin for begin, end in itertools.pairwise(BOUNDS))
        mistral = cases.model("mistral", "magi")
        pattern = f"sliding_window is {WINDOW}, but magi_plan shows keys {longest - 1} rows away"
        self.refuses(mistral, pattern)
        self.refuses(mistral, "sliding_window is 8, but", plan=cases.plan(window=9).bind())

    def test_layers_of_different_types(self):
        gemma = cases.model("gemma2", "magi")
        bound = cases.plan().bind()
        self.refuses(gemma, "sliding_window is 8", plan=bound)
        self.refuses(gemma, "no plan for layers of type 'sliding_attention'",
                     plan={"full_attention": bound})  # fmt: skip

    def test_other_arguments(self, llama):
        self.refuses(llama, "magi_plan is a Plan", TypeError, plan=cases.plan())
        self.refuses(llama, "output_attentions is True", output_attentions=True)
        longer = torch.zeros(1, ROWS + 1, dtype=torch.long)
        self.refuses(llama, f"q has {ROWS + 1} rows; allowed: ", input_ids=longer,
                     position_ids=longer, labels=None)  # fmt: skip
        bound, ids = cases.plan().bind(), longer[:, 1:]
        for given, name in (
            ((longer,), "input_ids"),
            ((ids.view(2, -1),), "input_ids"),
            ((ids, longer), "labels"),
            ((ids, None, longer), "position_ids"),
        ):
            with pytest.raises(ValueError, match=rf"{name} has shape .*allowed: \[{ROWS}\] or"):
                shard(bound, *given)

    def test_overlays_and_chunks(self, llama):
        """What only the mask function of the model is told."""
        from transformers.masking_utils import create_causal_mask, create_chunked_causal_mask

        config, rows = llama.config, torch.zeros(1, ROWS, 32)
        blocks = torch.zeros(1, ROWS, dtype=torch.long)
        config.attention_chunk_size = 16
        arguments = dict(
            config=config, inputs_embeds=rows, attention_mask=None, past_key_values=None
        )
        overlays = (
            create_causal_mask(**arguments, and_mask_function=lambda b, h, q, k: q - k < 9),
            create_causal_mask(**arguments, block_sequence_ids=blocks),
        )
        q, kv = torch.zeros(1, 4, ROWS, 8), torch.zeros(1, 2, ROWS, 8)
        layer = llama.model.layers[0].self_attn

        def call(mask):
            return attention(layer, q, kv, kv, mask, magi_plan=cases.plan().bind())

        for overlay in overlays:
            with pytest.raises(ValueError, match="a mask overlay of the model is not in magi_plan"):
                call(overlay)
        with pytest.raises(ValueError, match="the layer sees chunks of 16 rows"):
            call(create_chunked_causal_mask(**arguments))

    @pytest.mark.parametrize(
        "name, model_class",
        [("stablelm", "StableLmForCausalLM"), ("nemotron", "NemotronForCausalLM")],
    )
    def test_layers_that_drop_keywords(self, name, model_class):
        """Ranks would attend to their own rows alone; without a plan such a model runs."""
        model = cases.model(name, "magi")
        ids = cases.batch()[0]
        wanted = cases.model(name, "sdpa")(input_ids=ids).logits
        assert torch.equal(model(input_ids=ids).logits, wanted)
        pattern = f"{model_class} was given magi_plan, but its .*Attention was not; allowed: "
        self.refuses(model, pattern)
        self.refuses(model, pattern, plan={"full_attention": cases.plan().bind()})
        call = torch.compile(model, fullgraph=True, backend="eager")
        self.refuses(call, f"(?s){pattern}", Exception)
        model.gradient_checkpointing_enable()
        self.refuses(model.train(), pattern)
        assert torch.equal(model.eval()(input_ids=ids).logits, wanted)

    @pytest.mark.parametrize("name, option", [("gpt_oss", "s_aux"), ("gemma2", "softcap")])
    def test_options_of_plans_alone(self, name, option):
        with pytest.raises(ValueError, match=f"{option} is given; allowed: None without magi_plan"):
            cases.model(name, "magi")(input_ids=cases.batch()[0])

    def test_dropout(self):
        llama = cases.model("llama", "magi").train()
        for layer in llama.model.layers:
            layer.self_attn.attention_dropout = 0.1
        self.refuses(llama, "dropout is 0.1; allowed: 0")


def test_reach():
    assert cases.plan(window=9).reach == (8, 0)
    assert cases.plan().reach == (26, 0)


class TestRegister:
    """A name belongs to whoever took it first."""

    @pytest.fixture(autouse=True)
    def restored(self):
        interfaces = AttentionInterface, AttentionMaskInterface
        before = [dict(interface._global_mapping) for interface in interfaces]
        yield
        for interface, mapping in zip(interfaces, before):
            interface._global_mapping.clear()
            interface._global_mapping.update(mapping)

    def test_another_name(self):
        register(name="magi_cp")
        register(name="magi_cp")
        model = cases.model("llama", "magi_cp")
        ids, labels, positions = cases.batch()
        found = model(**shard(cases.plan().bind(), ids, labels, positions)).loss
        ours = cases.model("llama", "magi")
        assert found == ours(**shard(cases.plan().bind(), ids, labels, positions)).loss

    @pytest.mark.parametrize("interface", [AttentionInterface, AttentionMaskInterface])
    def test_names_of_others(self, interface):
        def theirs(*arguments, **keywords):
            raise AssertionError("it was called")

        interface.register("taken", theirs)
        for name in ("taken", "sdpa", "eager", "flash_attention_2"):
            with pytest.raises(ValueError, match=f"name is '{name}', which .* registered; allowed"):
                register(name=name)
        assert interface()["taken"] is theirs
        other = ({AttentionInterface, AttentionMaskInterface} - {interface}).pop()
        assert "taken" not in other()
        with pytest.raises(TypeError, match="name is a NoneType"):
            register(name=None)

    def test_name_that_another_takes_later(self):
        """It gets masks as "sdpa" does, not objects that only we read."""
        seen = []

        def theirs(module, query, key, value, attention_mask, **keywords):
            seen.append(attention_mask)
            return sdpa_attention_forward(module, query, key, value, attention_mask, **keywords)

        AttentionInterface.register("magi", theirs)
        ids = cases.batch()[0]
        padding = torch.ones_like(ids)
        padding[0, :7] = 0
        found, wanted = (
            cases.model("mistral", name)(input_ids=ids, attention_mask=padding).logits
            for name in ("magi", "sdpa")
        )
        assert torch.equal(found, wanted) and isinstance(seen[0], torch.Tensor)
