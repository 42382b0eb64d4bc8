# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models with attn_implementation="magi" against "sdpa" and "eager"."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("transformers", minversion="5")

import torch
import torch.distributed as dist
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    NemotronConfig,
    Qwen3Config,
    StableLmConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import dense
import pipeline_cases
from dense import close, gradients
from magi_attention import Plan, api
from magi_attention.common import AttnRange, AttnRanges
from magi_attention.integrations import packed
from magi_attention.integrations.transformers import attention, check_model, register, shard
from magi_attention.training import save_attention
from ranks import over, refuses, sum_over
from test_training import Counts

ROWS = 60
BOUNDS = (0, 17, 18, 45, ROWS)
VOCABULARY = 61
WINDOW = 8
_SIZES = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, vocab_size=VOCABULARY, max_position_embeddings=128,
)  # fmt: skip


register()


def model(name: str, implementation: str) -> torch.nn.Module:
    """A tiny model in float64; equal names give equal weights."""
    configs = {
        "llama": lambda: LlamaConfig(**_SIZES),
        "stablelm": lambda: StableLmConfig(**_SIZES),
        "nemotron": lambda: NemotronConfig(**_SIZES),
        "mistral": lambda: MistralConfig(**_SIZES, sliding_window=WINDOW),
        "gemma2": lambda: Gemma2Config(
            **_SIZES, sliding_window=WINDOW, attn_logit_softcapping=3.0, final_logit_softcapping=9.0
        ),
        "qwen3": lambda: Qwen3Config(**_SIZES),
        "gemma3": lambda: Gemma3TextConfig(
            **_SIZES, sliding_window=WINDOW, query_pre_attn_scalar=5,
            layer_types=["sliding_attention", "full_attention"],
        ),
        "gpt_oss": lambda: GptOssConfig(
            **_SIZES, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
    }  # fmt: skip
    torch.manual_seed(7)
    config = configs[name]()
    config._experts_implementation = "eager"  # the others know no float64
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    for key, weights in made.named_parameters():
        if key.endswith("sinks"):
            torch.nn.init.normal_(weights)
    made.set_attn_implementation(implementation)
    return made.double()


def documents(*, window: int | None = None) -> tuple[AttnRanges, AttnRanges, list]:
    """Packed causal documents, under a window of `window` rows where one is given."""
    q_ranges, k_ranges, types = AttnRanges(), AttnRanges(), []
    for begin, end in itertools.pairwise(BOUNDS):
        rows = AttnRange(begin, end)
        size = (-1 if window is None else window - 1, 0)
        q, k, kinds = api.infer_attn_mask_from_sliding_window(rows, rows, size)
        q_ranges.extend(q)
        k_ranges.extend(k)
        types.extend(kinds)
    return q_ranges, k_ranges, types


def plan(cp_size: int = 1, window: int | None = None, on: Plan | None = None) -> Plan:
    return Plan.from_ranges(
        *documents(window=window), ROWS, cp_size=cp_size, num_heads_q=4, num_heads_kv=2,
        head_dim=8, on=on,
    )  # fmt: skip


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """input_ids, labels and position_ids within documents, [1, ROWS]."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(VOCABULARY, (1, ROWS), generator=generator)
    labels = ids.clone()
    labels[0, list(BOUNDS[:-1])] = -100
    ends = itertools.pairwise(BOUNDS)
    return ids, labels, torch.cat([torch.arange(e - b) for b, e in ends]).unsqueeze(0)


def loss_of(logits: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
    """Sum over tokens, in the type of logits; that of transformers is float32."""
    flat = logits.view(-1, VOCABULARY)
    return torch.nn.functional.cross_entropy(flat, shifted.view(-1), reduction="sum")


def dense_mask(window: int | None = None) -> torch.Tensor:
    """bool [1, 1, ROWS, ROWS]."""
    q_ranges, k_ranges, types = documents(window=window)
    kinds = [kind.to_int_type() for kind in types]
    slices = q_ranges.to_naive_ranges(), k_ranges.to_naive_ranges(), kinds
    return dense.Mask(*slices, ROWS, ROWS).multiplicity().bool()[None, None]


def reference(name: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of the model with dense masks."""
    if name in ("llama", "mistral"):
        implementation, mask = "sdpa", dense_mask(WINDOW if name == "mistral" else None)
    else:  # sdpa knows neither sinks nor softcap
        implementation = "eager"
        masks = {"full_attention": dense_mask(), "sliding_attention": dense_mask(WINDOW)}
        mask = {kind: visible.double().log() for kind, visible in masks.items()}
    module = model(name, implementation)
    ids, labels, positions = batch()
    logits = module(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
    ).logits
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    loss = loss_of(logits, shifted)
    loss.backward()
    return loss.detach(), gradients(module)


def tolerance(name: str) -> float:
    return 1e-4 if name == "gemma2" else 1e-9  # its eager softmax is float32


def trained(group, name: str, checkpointed: bool | dict = False, compiled: bool = False):
    """Loss and gradients of the same model over the ranks of a group (None: alone)."""
    size = 1 if group is None else dist.get_world_size(group)
    module = model(name, "magi")
    if checkpointed:
        module.gradient_checkpointing_enable(None if checkpointed is True else checkpointed)
        module.train()
    whole = plan(size, WINDOW if name == "mistral" else None)
    bound = whole.bind(group)
    given = bound
    if name in ("gemma2", "gpt_oss"):
        windowed = plan(size, WINDOW, on=whole).bind(group)
        given = {"full_attention": bound, "sliding_attention": windowed}
    arguments = shard(bound, *batch())
    arguments["magi_plan"] = given
    shifted = arguments.pop("shift_labels")
    del arguments["labels"]
    call = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    loss = loss_of(call(**arguments).logits, shifted)
    loss.backward()
    found = gradients(module)
    total = loss.detach().clone()
    sum_over(group, total, *found.values())
    return total, found


def agrees(group, name: str, checkpointed: bool | dict = False, compiled: bool = False) -> None:
    wanted_loss, wanted = reference(name)
    loss, found = trained(group, name, checkpointed, compiled)
    allowed = tolerance(name)
    assert abs(loss - wanted_loss) <= allowed * abs(wanted_loss)
    close(found, wanted, allowed)


@over(2)
def test_loss_of_transformers(group):
    """shard and num_items_in_batch: losses of ranks add up to that of one process."""
    ids, labels, positions = batch()
    tokens = int((labels[:, 1:] != -100).sum())
    module = model("llama", "magi")
    bound = plan(dist.get_world_size(group)).bind(group)
    arguments = shard(bound, ids, labels, positions)
    loss = module(**arguments, num_items_in_batch=tokens).loss.detach()
    dist.all_reduce(loss, group=group)
    alone = model("llama", "sdpa")
    wanted = alone(input_ids=ids, labels=labels, position_ids=positions, use_cache=False).loss
    assert abs(loss - wanted) < 1e-5


@over(2)
def test_over_keys(group):
    """A key in place of a bound plan, position ids along the sequence."""
    ids, _, _ = batch()
    key = api.magi_attn_flex_key(*documents(), ROWS, ROWS, 4, 2, 8, cp_group_or_mesh=group)
    logits = model("llama", "magi")(**shard(key, ids)).logits
    found = api.undispatch(logits[0], key)
    wanted = model("llama", "sdpa")(
        input_ids=ids, attention_mask=dense_mask(), use_cache=False
    ).logits
    assert (found - wanted[0]).abs().max() < 1e-9


@over(2)
def test_other_samples(group):
    """Ranks that are given sequences of one length and other tokens, under a plan that has run."""
    ids, labels, positions = batch()
    bound = plan(dist.get_world_size(group)).bind(group)
    for others in ((ids + dist.get_rank(group),), (ids, labels.roll(dist.get_rank(group)))):
        pattern = r"ranks \[1\] of cp_group are given other samples than rank 0; allowed: the same"
        refuses(lambda: shard(bound, *others), ValueError, pattern)
        model("llama", "magi")(**shard(bound, ids, labels, positions))


@over(2)
def test_rows_from_the_end(group):
    """A rank's last rows are not those of the sequence."""
    bound = plan(dist.get_world_size(group)).bind(group)
    llama, arguments = model("llama", "magi"), shard(bound, batch()[0])
    refuses(lambda: llama(**arguments, logits_to_keep=1), ValueError, "given logits_to_keep")
    assert llama(**arguments, logits_to_keep=0).logits.shape[1] == bound.local_rows
    assert model("llama", "magi")(**shard(plan().bind(), batch()[0]), logits_to_keep=1).logits.any()


@over(3)
def test_plans_with_an_idle_rank(group):
    """They are refused before a model runs, on the ranks that have rows too."""
    idle = pipeline_cases.IDLE
    key = pipeline_cases.make_key(dense.masks(idle.rows)[idle.mask], idle, group)
    ids = torch.arange(idle.rows)
    refuses(lambda: shard(key, ids), ValueError, "the plan gives rank 2 no rows")


@pytest.fixture(autouse=True)
def fresh_compiler():
    """A compiler that has failed in a test would skip the same code in the next."""
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_one_process(name):
    agrees(None, name)


def test_gradient_checkpointing():
    agrees(None, "llama", checkpointed=True)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_compiled(name):
    agrees(None, name, compiled=True)


@over(2, 3, 4)
def test_ranks(group):
    agrees(group, ("llama", "gpt_oss", "mistral")[dist.get_world_size(group) - 2])


@over(2)
@pytest.mark.parametrize("change", ["checkpointed", "compiled"])
def test_ranks_recompute_and_compile(group, change):
    agrees(group, "llama", **{change: True})


@over(2)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_recomputation_that_keeps_attention(group, is_compiled):
    """Attention of the two layers runs once."""
    keeping = {"use_reentrant": False, "context_fn": save_attention}
    with Counts() as counted:
        agrees(group, "llama", keeping, is_compiled)
    assert counted.found[0] == 2


def test_models_that_attend_otherwise_again():
    """Whose attention was ours at an earlier check."""
    llama = model("llama", "magi")
    check_model(llama)
    llama.set_attn_implementation("sdpa")
    ids, labels, positions = batch()
    with pytest.raises(ValueError, match="LlamaForCausalLM attends through 'sdpa'"):
        shard(plan().bind(), ids, labels, positions, llama)


@pytest.fixture(scope="module")
def llama():
    return model("llama", "magi")


class TestWithoutPlan:
    """What "sdpa" gives, masks included."""

    @pytest.mark.parametrize("name", ["llama", "mistral"])
    def test_masks(self, name):
        ids, _, positions = batch()
        ids = ids.repeat(2, 1)
        padding = torch.ones_like(ids)
        padding[1, :7] = 0
        visible = torch.rand(2, 1, ROWS, ROWS) < 0.5
        visible |= torch.eye(ROWS, dtype=torch.bool)
        ours, theirs = model(name, "magi"), model(name, "sdpa")
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
        bound = plan().bind()
        arguments = shard(bound, batch()[0])
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
        ids = batch()[0][:, :9]
        found, wanted = (
            model("mistral", name).generate(ids, max_new_tokens=6, do_sample=False)
            for name in ("magi", "sdpa")
        )
        assert torch.equal(found, wanted)


class TestRefusals:
    """A mask that the plan does not hold is named."""

    def refuses(self, module, pattern, error=ValueError, other_plan=None, **changes):
        bound = plan().bind()
        arguments = shard(bound, *batch())
        arguments.update(changes, magi_plan=other_plan or bound)
        with pytest.raises(error, match=pattern):
            module(**arguments)

    def test_padding(self, llama):
        bound = plan().bind()
        padding = torch.ones(1, bound.local_rows, dtype=torch.long)
        arguments = shard(bound, *batch())
        assert llama(**arguments, attention_mask=padding).logits.isfinite().all()
        padding[0, -5:] = 0
        self.refuses(llama, "attention_mask, which hides 5 rows", attention_mask=padding)

    def test_numbered_documents(self, llama):
        numbers = torch.ones(1, plan().padded_seqlen, dtype=torch.long)
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
        padding = torch.ones(1, plan().padded_seqlen, dtype=torch.long)
        call = torch.compile(llama, fullgraph=True, backend="eager")
        self.refuses(call, "(?s)Observed exception.*attention_mask", Exception,
                     attention_mask=padding)  # fmt: skip

    def test_window(self):
        longest = max(end - begin for begin, end in itertools.pairwise(BOUNDS))
        mistral = model("mistral", "magi")
        pattern = f"sliding_window is {WINDOW}, but magi_plan shows keys {longest - 1} rows away"
        self.refuses(mistral, pattern)
        self.refuses(mistral, "sliding_window is 8, but", other_plan=plan(window=9).bind())

    def test_layers_of_different_types(self):
        gemma = model("gemma2", "magi")
        bound = plan().bind()
        self.refuses(gemma, "sliding_window is 8", other_plan=bound)
        self.refuses(gemma, "no plan for layers of type 'sliding_attention'",
                     other_plan={"full_attention": bound})  # fmt: skip

    def test_other_arguments(self, llama):
        self.refuses(llama, "magi_plan is a Plan", TypeError, other_plan=plan())
        self.refuses(llama, "output_attentions is True", output_attentions=True)
        longer = torch.zeros(1, ROWS + 1, dtype=torch.long)
        self.refuses(llama, f"q has {ROWS + 1} rows; allowed: ", input_ids=longer,
                     position_ids=longer, labels=None)  # fmt: skip
        bound, ids = plan().bind(), longer[:, 1:]
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
            return attention(layer, q, kv, kv, mask, magi_plan=plan().bind())

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
        module = model(name, "magi")
        ids = batch()[0]
        wanted = model(name, "sdpa")(input_ids=ids).logits
        assert torch.equal(module(input_ids=ids).logits, wanted)
        pattern = f"{model_class} was given magi_plan, but its .*Attention was not; allowed: "
        self.refuses(module, pattern)
        self.refuses(module, pattern, other_plan={"full_attention": plan().bind()})
        call = torch.compile(module, fullgraph=True, backend="eager")
        self.refuses(call, f"(?s){pattern}", Exception)
        module.gradient_checkpointing_enable()
        self.refuses(module.train(), pattern)
        assert torch.equal(module.eval()(input_ids=ids).logits, wanted)

    @pytest.mark.parametrize("name, option", [("gpt_oss", "s_aux"), ("gemma2", "softcap")])
    def test_options_of_plans_alone(self, name, option):
        with pytest.raises(ValueError, match=f"{option} is given; allowed: None without magi_plan"):
            model(name, "magi")(input_ids=batch()[0])

    def test_dropout(self):
        llama = model("llama", "magi").train()
        for layer in llama.model.layers:
            layer.self_attn.attention_dropout = 0.1
        self.refuses(llama, "dropout is 0.1; allowed: 0")


def test_reach():
    assert plan(window=9).reach == (8, 0)
    assert plan().reach == (26, 0)


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
        module = model("llama", "magi_cp")
        ids, labels, positions = batch()
        found = module(**shard(plan().bind(), ids, labels, positions)).loss
        ours = model("llama", "magi")
        assert found == ours(**shard(plan().bind(), ids, labels, positions)).loss

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
        ids = batch()[0]
        padding = torch.ones_like(ids)
        padding[0, :7] = 0
        found, wanted = (
            model("mistral", name)(input_ids=ids, attention_mask=padding).logits
            for name in ("magi", "sdpa")
        )
        assert torch.equal(found, wanted) and isinstance(seen[0], torch.Tensor)
