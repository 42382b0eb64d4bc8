# SPDX-License-Identifier: Apache-2.0
"""Attention for Megatron-LM, beside that of megatron-core."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from unittest import mock

import pytest

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import dense
from dense import close, gradients
from magi_attention import attention, masks
from ranks import over, sum_over
from test_docs import blocks
from test_training import Counts

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it has no Transformer Engine, and says so
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.extensions import transformer_engine
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_mtp_block_spec,
    )
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import TransformerConfig, transformer_block
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler

    from magi_attention.integrations import megatron as ours


# Megatron makes its groups on all processes, so that every test runs on all four.
ON_ALL = over(4)
VOCABULARY = 64
ROWS = 62
DOCUMENTS = (17, 30, 1, 14)
KEPT_LOSSES = "megatron.core.transformer.multi_token_prediction.MTPLossLoggingHelper"


@contextlib.contextmanager
def on_cpu():
    """Megatron asks for the current GPU and random numbers, and keeps losses of earlier models."""
    tracker = mock.Mock()
    tracker.fork = lambda *_: contextlib.nullcontext()
    place = "megatron.core.tensor_parallel"
    with (
        mock.patch("torch.cuda.current_device", return_value="cpu"),
        mock.patch(f"{place}.get_cuda_rng_tracker", return_value=tracker),
        mock.patch(f"{KEPT_LOSSES}.tracker", {}),
    ):
        yield


@contextlib.contextmanager
def recomputing_on_cpu():
    """What on_cpu does, for layers that are recomputed; a stack for more."""
    random = "megatron.core.tensor_parallel.random"
    with on_cpu(), contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch(f"{random}._get_all_rng_states", return_value=()))
        stack.enter_context(mock.patch(f"{random}._set_all_rng_states"))
        stack.enter_context(mock.patch(f"{random}._fork_rng", contextlib.nullcontext))
        yield stack


def start(cp_size: int, **others) -> dist.ProcessGroup:
    """Megatron's groups over all processes, and this one's context parallel group."""
    if parallel_state.model_parallel_is_initialized():  # a case that starts twice
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(context_parallel_size=cp_size, **others)
    return parallel_state.get_context_parallel_group()


def config(cp_size: int = 1, **changes) -> TransformerConfig:
    given = dict(
        num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48,
        attention_dropout=0.0, hidden_dropout=0.0, use_cpu_initialization=True,
        params_dtype=torch.float64, pipeline_dtype=torch.float64, context_parallel_size=cp_size,
        masked_softmax_fusion=False, bias_dropout_fusion=False, attention_softmax_in_fp32=False,
    )  # fmt: skip
    made = TransformerConfig(**{**given, **changes})
    yarn = dict(
        rotary_scaling_factor=4.0, original_max_position_embeddings=32, beta_fast=32.0,
        beta_slow=1.0, mscale=1.0, mscale_all_dim=0.0, correction_range_round_to_int=True,
    )  # fmt: skip
    for name, value in yarn.items():  # which Megatron reads off, but has no fields for
        setattr(made, f"yarn_{name}", value)
    return made


def gpt(settings: TransformerConfig, is_ours: bool, embedding: str = "rope") -> GPTModel:
    """Equal settings give equal weights."""
    torch.manual_seed(5)
    spec = get_gpt_layer_local_spec()
    if is_ours:
        spec = ours.with_magi_attention(spec)
    mtp = None
    if settings.mtp_num_layers:
        mtp = get_gpt_mtp_block_spec(settings, spec, use_transformer_engine=False)
    model = GPTModel(
        settings, spec, VOCABULARY, 128, position_embedding_type=embedding, mtp_block_spec=mtp
    ).double()
    if is_ours:
        return ours.adapt_model(model)
    for module in filter(lambda module: hasattr(module, "rotary_pos_emb"), model.modules()):
        module.rotary_pos_emb.cp_group = None  # whole sequences on every rank
    return model


def packed_batch(step: int = 0) -> dict:
    """Packed documents; labels are those of rows."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (1, ROWS), generator=generator)
    ends = list(itertools.accumulate(DOCUMENTS))
    mask = torch.ones(1, ROWS, dtype=torch.float64)
    mask[0, [end - 1 for end in ends]] = 0
    return {
        "tokens": tokens, "labels": tokens.roll(-1, 1), "loss_mask": mask,
        "position_ids": torch.cat([torch.arange(n) for n in DOCUMENTS])[None],
        "cu_seqlens": torch.tensor([[0, *ends]], dtype=torch.int32),
    }  # fmt: skip


def samples_of_step() -> list[dict]:
    """The documents of a packed batch."""
    names, batch = ("tokens", "labels", "loss_mask"), packed_batch()
    parts = (batch[name][0].split(DOCUMENTS) for name in names)
    return [dict(zip(names, part, strict=True)) for part in zip(*parts, strict=True)]


def padded_in_place(batch: dict) -> dict:
    """packed_batch with rows between documents, and behind the last one."""
    places, bounds = [], [0]
    for begin, length in zip(itertools.accumulate((0, *DOCUMENTS[:-1])), DOCUMENTS):
        padded = -(-length // 8) * 8
        places += [*range(begin, begin + length), *[-1] * (padded - length)]
        bounds.append(bounds[-1] + padded)
    places = torch.tensor(places + [-1] * 8)
    real = {name: batch[name][:, places] for name in ("tokens", "labels", "loss_mask")}
    real["loss_mask"] *= places >= 0
    return real | {"cu_seqlens": batch["cu_seqlens"], "cu_seqlens_padded": torch.tensor(bounds)}


def hidden(documents=DOCUMENTS, window: int | None = None) -> torch.Tensor:
    """bool [1, 1, rows, rows] of packed causal documents, True: hidden."""
    of = torch.repeat_interleave(torch.arange(len(documents)), torch.tensor(documents))
    row = torch.arange(len(of))
    visible = (of[:, None] == of) & (row <= row[:, None])
    if window is not None:
        visible &= row >= row[:, None] - window
    return ~visible[None, None]


def losses_of(model, local: dict) -> torch.Tensor:
    """[1, rows]: of this rank's rows of a batch."""
    return model(
        local["tokens"], local["position_ids"], None, labels=local["labels"],
        loss_mask=local["loss_mask"], packed_seq_params=local["packed_seq_params"],
    )  # fmt: skip


def same_step(loss, found: dict, wanted: tuple) -> None:
    """The loss and gradients that `reference` gives; rotary tables and losses are float32."""
    assert abs(loss - wanted[0]) < 1e-5 * abs(wanted[0])
    close(found, wanted[1])


def reference(settings, batch, mask, embedding="rope", rows=slice(None)):
    """Loss and gradients of Megatron's own attention under a dense mask."""
    model = gpt(settings, False, embedding)
    losses = model(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"])
    loss = (losses * batch["loss_mask"])[:, rows].sum()
    loss.backward()
    return loss.detach(), gradients(model)


def shared_out(group, settings, batch, embedding="rope"):
    """The same over the ranks of a group, with our attention."""
    model = gpt(settings, True, embedding)
    local = ours.prepare_batch(batch, model, group)
    assert local["attention_mask"] is None
    losses = losses_of(model, local)
    loss = (losses * local["loss_mask"]).sum()
    loss.backward()
    total, found = loss.detach().clone(), gradients(model)
    sum_over(group, total, *found.values())
    return total, found, local


def under_megatrons_parameters(settings, batch) -> dict[str, torch.Tensor]:
    """Gradients of our attention to a packed batch as Megatron describes it."""
    bounds, longest = batch["cu_seqlens"][0], max(DOCUMENTS)
    params = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=longest, max_seqlen_kv=longest)
    model = gpt(settings, True)
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"],
                   packed_seq_params=params)  # fmt: skip
    (losses * batch["loss_mask"]).sum().backward()
    return gradients(model)


def check_packed(cp_size, embedding="rope", place=lambda batch: batch, **changes) -> None:
    """Packed documents, as place gives them: the gradients of Megatron's own attention."""
    with on_cpu():
        group, batch = start(cp_size), packed_batch()
        mask = hidden(window=changes.get("window_size", (None,))[0])
        wanted = reference(config(), batch, mask, embedding)
        real, settings = place(batch), config(cp_size, **changes)
        loss, found, local = shared_out(group, settings, real, embedding)
        same_step(loss, found, wanted)
        # Equal shards, padded once.
        rows = real["tokens"].numel()
        plan = ours.bound_of(local["packed_seq_params"].plan).plan
        assert plan.pad_size == 0 and plan.total_seqlen == -(-rows // cp_size) * cp_size
        assert local["tokens"].shape == (1, plan.total_seqlen // cp_size)


@ON_ALL
@pytest.mark.parametrize(
    "size, embedding", [(1, "rope"), (2, "rope"), (4, "rope"), (2, "learned_absolute"), (1, "yarn")]
)
def test_packed_documents(group, size, embedding):
    check_packed(size, embedding)


@ON_ALL
@pytest.mark.parametrize("size", [1, 2])
def test_windows(group, size):
    """Every layer with window_size: one mask on the rows of another."""
    check_packed(size, window_size=(5, 0))


@ON_ALL
def test_recomputation_that_keeps_attention(group):
    """Every layer is recomputed, and attention runs once."""
    recomputed = dict(
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1
    )
    own, counts = tensor_parallel.checkpoint, []
    with recomputing_on_cpu() as stack:
        stack.callback(setattr, tensor_parallel, "checkpoint", own)
        for code in ("", blocks("docs/training.md")[2]):
            exec(code, {})
            with Counts() as counted:
                check_packed(2, **recomputed)
            counts.append(counted.found)
    (whole, exchanged), (kept, fewer) = counts
    assert (whole, kept) == (4, 2) and fewer < exchanged


def test_recomputation_of_fp8_that_keeps_attention(monkeypatch):
    """Transformer Engine's checkpoint calls a function twice, as torch's with reentrance does."""
    mask, x = masks.from_cu_seqlens([0, 5, 12]), torch.randn(12, 4, 8, requires_grad=True)
    monkeypatch.setattr(tensor_parallel, "checkpoint", tensor_parallel.checkpoint)
    for module in (transformer_engine, transformer_block):
        monkeypatch.setattr(module, "te_checkpoint", None)
    monkeypatch.setattr(ours, "_te_checkpoint_of_megatron", lambda function, *others: checkpoint(
        function, others[-1], use_reentrant=True))  # fmt: skip
    ours.save_attention()
    for module in (transformer_engine, transformer_block):
        with Counts() as counted:
            out = module.te_checkpoint(lambda x: attention(x, x, x, mask), False, None, None, x)
            out.sum().backward()
        assert counted.found[0] == 1


@ON_ALL
def test_training(group):
    """Two replicas of two context parallel ranks train beside Megatron's attention."""
    with on_cpu():
        cp_group = start(2)
        alone, model = gpt(config(), False), gpt(config(2), True)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (alone, model)]
        curves = [], []
        for step in range(6):
            batch = packed_batch(step % 2)
            tokens = batch["loss_mask"].sum()
            losses = alone(batch["tokens"], batch["position_ids"], hidden(), labels=batch["labels"])
            wanted = (losses * batch["loss_mask"]).sum() / tokens
            local = ours.prepare_batch(batch, model, cp_group)
            losses = losses_of(model, local)
            found = (losses * local["loss_mask"]).sum() / tokens
            for optimizer, loss in zip(optimizers, (wanted, found)):
                optimizer.zero_grad()
                loss.backward()
            total = found.detach().clone()
            sum_over(cp_group, total, *gradients(model).values())
            for optimizer in optimizers:
                optimizer.step()
            curves[0].append(wanted.item())
            curves[1].append(total.item())
        for one, other in zip(*curves):
            assert abs(one - other) < 1e-5, curves
        assert curves[1][-1] < 0.9 * curves[1][0], curves


@ON_ALL
@pytest.mark.parametrize("size", [1, 2, 4])
def test_several_tokens(group, size):
    """Multi-token prediction: tokens and labels are rolled in the order of the sequence, within
    documents, over ranks.
    """
    with on_cpu():
        group, batch = start(size), packed_batch()
        # Megatron's roll knows documents of packed parameters; its own attention does not.
        settings = dict(
            mtp_num_layers=2, mtp_loss_scaling_factor=0.3, calculate_per_token_loss=True
        )
        model = gpt(config(size, **settings), True)
        local = ours.prepare_batch(batch, model, group)
        params = local["packed_seq_params"]
        ends = list(itertools.accumulate(DOCUMENTS))
        wanted = batch["labels"][0]
        found = local["labels"]
        for _ in range(2):
            wanted = wanted.roll(-1)
            wanted[[end - 1 for end in ends]] = 0
            found, total = ours.roll_tensor(found, -1, -1, group, params)
            whole = ours.bound_of(params.plan).undispatch(found[0])[:ROWS]
            assert torch.equal(whole, wanted) and abs(total * size - wanted.sum()) < 1e-9
        MTPLossAutoScaler.set_loss_scale(torch.ones(1))
        wanted = shared_out(None, config(**settings), batch)[1]
        close(shared_out(group, config(size, **settings), batch)[1], wanted)


@ON_ALL
@pytest.mark.parametrize("size", [1, 2])
def test_padding(group, size):
    """Sequences of a batch are documents; those that a mask pads lose their padding."""
    with on_cpu():
        group = start(size)
        generator = torch.Generator().manual_seed(9)
        tokens = torch.randint(VOCABULARY, (3, 20), generator=generator)
        loss_mask = torch.ones(3, 20, dtype=torch.float64)
        shown = torch.ones(3, 20, dtype=torch.bool)
        shown[0, 11:] = shown[2, 4:] = False
        for padding in (None, shown, hidden((20,)), hidden((20,)).expand(3, -1, -1, -1)):
            batch = {"tokens": tokens, "labels": tokens.roll(-1, 1), "loss_mask": loss_mask}
            if padding is shown:
                batch["loss_mask"] = loss_mask * shown
            positions = torch.arange(20).expand(3, -1)
            wanted = reference(config(), {**batch, "position_ids": positions}, hidden((20,)))
            batch["attention_mask"] = padding
            loss, found, local = shared_out(group, config(size), batch)
            same_step(loss, found, wanted)
            if padding is shown:
                assert local["tokens"].numel() == -(-35 // size)


@ON_ALL
@pytest.mark.parametrize("size", [1, 2])
def test_documents_padded_in_place(group, size):
    """cu_seqlens_padded: rows between documents are seen by nobody."""
    check_packed(size, place=padded_in_place)


@ON_ALL
def test_batches_of_megatron(group):
    """On one rank: batches of Megatron as they are, and its packed parameters."""
    with on_cpu():
        start(1)
        generator = torch.Generator().manual_seed(9)
        tokens = torch.randint(VOCABULARY, (3, 20), generator=generator)
        mask = torch.ones(3, 20, dtype=torch.float64)
        positions = torch.arange(20).expand(3, -1)
        batch = {"tokens": tokens, "labels": tokens, "loss_mask": mask, "position_ids": positions}
        wanted = reference(config(), batch, hidden((20,)))
        for given in (None, hidden((20,))):
            model = gpt(config(), True)
            model(tokens, positions, given, labels=tokens).sum().backward()
            close(gradients(model), wanted[1])
        batch = packed_batch()
        wanted = reference(config(), batch, hidden())
        close(under_megatrons_parameters(config(), batch), wanted[1])


@ON_ALL
def test_without_a_group(group):
    """prepare_batch of this process alone."""
    with on_cpu():
        _, batch = start(1), packed_batch()
        wanted = reference(config(), batch, hidden())
        loss, found, _ = shared_out(None, config(), batch)
        with pytest.raises(ValueError, match="cp_group has 1 ranks; allowed: 2, context_parallel"):
            ours.prepare_batch(batch, config(2), None)
        same_step(loss, found, wanted)


@ON_ALL
def test_example(group):
    """Those of the docs run as they stand, of a config, a batch and a group."""
    code, of_batches = (code for code in blocks("docs/integrations.md") if "megatron" in code)
    with on_cpu():
        group = start(2)
        single = dict(params_dtype=torch.float32, pipeline_dtype=torch.float32)
        shown = {"config": config(2, **single), "batch": packed_batch(), "cp_group": group}
        exec(code, shown)
        assert shown["loss"].isfinite() and shown["local"]["tokens"].shape == (1, ROWS // 2)
        shown |= {"samples": samples_of_step(), "num_microbatches": 2}
        exec(of_batches, shown)
        assert shown["local"]["loss_weights"].shape == shown["losses"].shape


@ON_ALL
def test_several_ranks_without_a_plan(group):
    """Ranks without a plan would attend to their own rows alone."""
    with on_cpu():
        start(2)
        model, batch = gpt(config(2), True, "learned_absolute"), packed_batch()
        with pytest.raises(ValueError, match="packed_seq_params holds no plan, over 2 ranks"):
            model(batch["tokens"], batch["position_ids"], None)


@ON_ALL
@pytest.mark.parametrize("embedding, rows, batch", [("rope", 32, 1), ("learned_absolute", 31, 2)])
def test_rows_of_another_stage(group, embedding, rows, batch):
    """A pipeline that sends the rows of its arguments, where a batch has others."""
    with on_cpu():
        cp_group, model = start(2), gpt(config(2), True, embedding)
        model.pre_process = model.decoder.pre_process = False  # as of a later stage
        params = ours.prepare_batch(packed_batch(), model, cp_group)["packed_seq_params"]
        model.set_input_tensor(torch.zeros(rows, batch, 32, dtype=torch.float64))
        with pytest.raises(ValueError, match=f"{rows} rows of {batch} seq.*: 31 of 1, .*; try: va"):
            model(None, None, None, packed_seq_params=params)


@ON_ALL
def test_other_batches(group):
    """Ranks that are given batches of one shape and other tokens."""
    with on_cpu():
        group, batch = start(2), packed_batch()
        other = {**batch, "tokens": batch["tokens"] + dist.get_rank(group)}
        pattern = r"ranks \[1\] of cp_group are given other samples than rank 0; allowed: the same"
        with pytest.raises(ValueError, match=pattern):
            ours.prepare_batch(other, config(2), group)
        assert ours.prepare_batch(batch, config(2), group)["tokens"].numel()


def core(**changes):
    """A core attention by itself, and its arguments."""
    with on_cpu():
        settings = config(**changes)
        return ours.MagiCoreAttention(settings, 1, AttnMaskType.causal, "self").double()


class TestCoreAttention:
    q, k, v = (torch.randn(12, 1, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))

    def test_sinks_and_maxima(self):
        mask = dense.Mask([(0, 12)], [(0, 12)], [1], 12, 12)
        rows = [tensor[:, 0] for tensor in (self.q, self.k, self.v)]
        for kind, sink in (("off-by-one", torch.zeros(1, 4)), ("learnable", torch.randn(1, 4))):
            made = core(softmax_type=kind, log_max_attention_logit=True)
            if kind == "learnable":
                assert [name for name, _ in made.named_parameters()] == ["softmax_offset"]
                made.softmax_offset.data.copy_(sink[0])
            else:
                assert not made.state_dict()
            found = made(self.q, self.k, self.v, None)
            wanted, _, maxima = dense.attention(*rows, mask, sink.double())
            assert found.shape == (12, 1, 32)
            assert (found.view(12, 4, 8) - wanted).abs().max() < 1e-6
            assert (made.current_max_attn_logits - maxima).abs().max() < 1e-6
            made(2 * self.q, self.k, self.v, None)
            assert (
                made.current_max_attn_logits - torch.maximum(maxima, 2 * maxima)
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
            core(**changes)

    def test_arguments(self):
        made = core()
        visible = torch.zeros(1, 1, 12, 12, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"attention_mask of shape \[1, 1, 12, 12\] is not"):
            made(self.q, self.k, self.v, visible)
        with pytest.raises(ValueError, match="attention_bias is given; allowed: None"):
            made(self.q, self.k, self.v, None, attention_bias=visible)
        settings = config()
        with pytest.raises(ValueError, match="attention_type is 'cross'; allowed: 'self'"):
            ours.MagiCoreAttention(settings, 1, AttnMaskType.causal, "cross")
        with pytest.raises(ValueError, match="spec has no core_attention"):
            ours.with_magi_attention(None)
        local = ours.prepare_batch({"tokens": torch.zeros(1, 12).long()}, settings, causal=False)
        params = local["packed_seq_params"]
        pattern = "attn_mask_type is causal, but prepare_batch was called with causal=False"
        with pytest.raises(ValueError, match=pattern):
            made(self.q, self.k, self.v, None, packed_seq_params=params)
        found = made(self.q, self.k, self.v, None, AttnMaskType.no_mask, packed_seq_params=params)
        mask = dense.Mask([(0, 12)], [(0, 12)], [0], 12, 12)
        wanted = dense.attention(*(t[:, 0] for t in (self.q, self.k, self.v)), mask)[0]
        assert (found.view(12, 4, 8) - wanted).abs().max() < 1e-12
        with pytest.raises(ValueError, match="attention_mask is given; allowed: None, as the plan"):
            made(self.q, self.k, self.v, visible, AttnMaskType.no_mask, packed_seq_params=params)
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
        ours.prepare_batch(batch, config())


def test_mask_that_numbers_documents():
    ids = torch.arange(12).view(2, 6)
    mask = torch.tensor([[1, 1, 2, 2, 2, 0], [0, 3, 3, 3, 3, 3]])
    local = ours.prepare_batch({"tokens": ids, "attention_mask": mask}, config())
    assert local["packed_seq_params"].documents.lengths == (2, 3, 5)
    assert local["tokens"].tolist() == [[*range(5), *range(7, 12)]]


def test_padded_bounds():
    """As NeMo and Megatron-Bridge pad them."""
    ids, bounds = torch.arange(12)[None], torch.tensor([[0, 5, 12, -1, -1]])
    batch = {"tokens": ids, "cu_seqlens": bounds, "cu_seqlens_argmin": torch.tensor(3)}
    local = ours.prepare_batch(batch, config())
    assert local["packed_seq_params"].documents.lengths == (5, 7)
    assert "cu_seqlens_argmin" not in local


def test_padding_has_no_loss_without_a_loss_mask():
    """Where a batch has labels alone, rows between documents and rows added to it count nowhere."""
    ids = torch.arange(12)[None]
    batch = {
        "tokens": ids, "labels": ids, "cu_seqlens": torch.tensor([0, 3, 7]),
        "cu_seqlens_padded": torch.tensor([0, 4, 12]),
    }  # fmt: skip
    local = ours.prepare_batch(batch, config())
    assert local["loss_mask"].tolist() == [[1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0]]
    assert local["loss_mask"].dtype == torch.float32
    assert "loss_mask" not in ours.prepare_batch({"tokens": ids}, config())
    tensor_ranks = config(sequence_parallel=True, tensor_model_parallel_size=2)
    odd = ours.prepare_batch({"tokens": ids[:, :7], "labels": ids[:, :7]}, tensor_ranks)
    assert odd["loss_mask"].tolist() == [[1] * 7 + [0]]
