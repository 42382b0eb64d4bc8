# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with recurrent layers beside attention, in float64 throughout: packed
documents and prefix trees over ranks against one process for each document or sample.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

pytest.importorskip("transformers", minversion="5")

from transformers.models.qwen3_next.modeling_qwen3_next import (
    causal_conv1d_fn,
    torch_chunk_gated_delta_rule,
)

import model_zoo as zoo
from magi_attention import Plan
from magi_attention.integrations import packed
from magi_attention.integrations._model_calls import calling_model
from magi_attention.integrations._model_plans import heads_of
from magi_attention.integrations._model_recurrent import is_served, recurrences_of
from magi_attention.integrations.trainer import MagiCollator
from magi_attention.recurrent import _fla, _kinds
from magi_attention.training import save_attention
from ranks import over
from test_training import Counts

FAMILIES = (
    "qwen3_next", "qwen3_5", "qwen4_exp", "nemotron_h", "granitemoehybrid", "bamba", "jamba",
    "lfm2", "lfm3", "minimax", "olmo_hybrid", "bailing_hybrid", "zamba", "recurrent_gemma", "zaya",
    "kimi_linear", "falcon_h1", "zamba2", "lfm2_moe",
)  # fmt: skip
# Families of the gated delta rule and of Mamba-2.
OF_TREES = (
    "qwen3_next", "qwen3_5", "olmo_hybrid", "nemotron_h", "granitemoehybrid", "bamba", "falcon_h1",
    "zamba2",
)  # fmt: skip
TOLERANCE = 1e-9
# One of each recurrence.
OF_EACH = (
    "qwen3_next", "kimi_linear", "bamba", "jamba", "lfm2", "minimax", "recurrent_gemma", "zaya",
)  # fmt: skip
_NODES, _PATHS = [9, 20, 12, 20], [[0, 1], [0, 2, 3], [0, 2]]


class _Wide(types.ModuleType):
    """torch, whose float32 is float64."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.float32 = self.float = torch.float64

    def __getattr__(self, name: str):
        return getattr(torch, name)


@contextlib.contextmanager
def float64(model: torch.nn.Module) -> Iterator[None]:
    """Widens what the model's own code rounds to float32, so that orders of sums do not show."""
    scopes = [vars(sys.modules[name]) for name in {type(m).__module__ for m in model.modules()}]
    scopes = [scope for scope in scopes if scope["__name__"].startswith("transformers.models")]
    narrow = torch.Tensor.float
    scans = [type(m)._rnn_scan for m in model.modules() if hasattr(type(m), "_rnn_scan")]
    try:
        torch.Tensor.float = torch.Tensor.double
        for scan in scans:
            inspect.unwrap(scan).__defaults__ = (torch.float64,)
        for scope in scopes:
            scope["torch"] = _Wide()
        yield
    finally:
        torch.Tensor.float = narrow
        for scope in scopes:
            scope["torch"] = torch


def _made(family: str, implementation: str) -> torch.nn.Module:
    zoo.ours.register()
    model = zoo.make(family)
    model.set_attn_implementation(implementation)
    return model


def _added(group: dist.ProcessGroup | None, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients of all parameters, added over ranks."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if isinstance(gradient, DTensor):  # the mean over ranks
            gradient = gradient.full_tensor() * group.size()
        elif group is not None:
            dist.all_reduce(gradient, group=group)
        found[name] = gradient
    return found


def _errors(group, model, alone, losses) -> float:
    found, wanted = _added(group, model), _added(None, alone)
    return max(_relative(*losses), *(_relative(found[name], wanted[name]) for name in wanted))


def _relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    largest = max(wanted.abs().max().item(), 1e-6)  # what sums to 0 exactly is rounded too
    return (found - wanted).abs().max().item() / largest


def documents(
    group: dist.ProcessGroup | None, family: str, placement: str, change: str | None = None
) -> float:
    """The largest relative error of logits, loss and gradients of packed documents. change: what a
    training does with the model besides: "kept" (attention, by checkpoints), "compiled", "sharded"
    (FSDP2).
    """
    model, alone = _made(family, "magi"), _made(family, "eager")
    ids, labels, positions = zoo.labelled()
    ranks = 1 if group is None else dist.get_world_size(group)
    with float64(model):
        wanted = [
            alone(input_ids=x, use_cache=False).logits[0] for x in ids.split(zoo.DOCUMENTS, 1)
        ]
        wanted = torch.cat(wanted)
        expected = zoo.loss_of_tokens(wanted)
        expected.backward()
        plans = _plans(model, ranks, placement, group)
        first = next(iter(plans.values())) if isinstance(plans, dict) else plans
        local = zoo.ours.shard(first, ids, None, positions, model)
        shifted = first.dispatch(labels[0].roll(-1), -100)
        call = _changed(model, change)
        logits = call(**{**local, "magi_plan": plans}).logits[0]
        loss = cross_entropy(logits, shifted, ignore_index=-100, reduction="sum") / zoo.TOKENS
        loss.backward()
    error = _relative(first.undispatch(logits.detach()), wanted.detach())
    loss = loss.detach()
    if group is not None:
        dist.all_reduce(loss, group=group)
    return max(error, _errors(group, model, alone, (loss, expected.detach())))


def _changed(model: torch.nn.Module, change: str | None):
    """What is called in place of the model."""
    if change == "compiled":
        return torch.compile(model, backend="eager")
    if change == "sharded":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if change == "kept":
        keeping = {"use_reentrant": False, "context_fn": save_attention}
        model.gradient_checkpointing_enable(keeping)
        model.train()
    return model


def _plans(model, ranks: int, placement: str, group):
    """Plans of the packed documents, one for each type of attention that differs."""
    config = zoo.config_of(model)
    spec = packed.AttnMaskSpec.varlen(zoo.DOCUMENTS)
    heads = heads_of(model)._asdict()
    whole = Plan.from_ranges(
        *spec.ranges(), spec.total_seqlen, cp_size=ranks, placement=placement, **heads
    )
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return whole.bind(group)
    window = packed.AttnMaskSpec.varlen(
        zoo.DOCUMENTS, window_size=(config.sliding_window - 1, 0)
    ).ranges()
    narrow = Plan.from_ranges(*window, spec.total_seqlen, cp_size=ranks, on=whole, **heads)
    return {"sliding_attention": narrow.bind(group), "full_attention": whole.bind(group)}


def tree(group: dist.ProcessGroup | None, family: str) -> float:
    """The largest relative error of loss and gradients of samples that share prefixes."""
    of_samples = packed.PrefixTree(_NODES, _PATHS)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, zoo.VOCABULARY, (1, sum(_NODES)), generator=generator)
    model, alone = _made(family, "magi"), _made(family, "eager")
    with float64(model):
        local, _ = packed.magi_prepare_prefix_tree(model, {"input_ids": ids}, of_samples, group)
        labels, weights = local.pop("labels"), local.pop("loss_weights")
        loss = packed.branch_loss(model(**local).logits, labels, weights)
        loss.backward()
        expected = torch.zeros((), dtype=torch.float64)
        for ranges in of_samples.sample_token_ranges:
            sample = torch.cat([ids[:, begin:end] for begin, end in ranges], 1)
            logits = alone(input_ids=sample, use_cache=False).logits[0, :-1]
            expected = expected + cross_entropy(logits, sample[0, 1:], reduction="sum")
        expected.backward()
    loss = loss.detach()
    if group is not None:
        dist.all_reduce(loss, group=group)
    packed.set_active_plan(None)
    return _errors(group, model, alone, (loss, expected.detach()))


@pytest.mark.parametrize("family", FAMILIES)
def test_alone(family):
    assert documents(None, family, "auto") <= TOLERANCE


@pytest.mark.parametrize("family", OF_EACH)
def test_collator(family):
    """Samples packed by the collator have the loss of each by itself."""
    model, alone = _made(family, "magi"), _made(family, "eager")
    parts = zoo.batch()[0].split(zoo.DOCUMENTS, 1)
    batch = MagiCollator(model)([{"input_ids": part[0]} for part in parts])
    logits = torch.cat([alone(input_ids=part, use_cache=False).logits[0] for part in parts])
    loss = model(**batch, num_items_in_batch=zoo.TOKENS).loss
    assert abs(loss - zoo.loss_of_tokens(logits)) <= 1e-5


def _used_kernels(monkeypatch) -> set[str]:
    """The kernels of fla-core that are called, here computed in plain torch."""
    used = set()

    def noted(kind: type) -> type:
        class Noted(kind):
            def forward(self, inputs, runs):
                used.add(kind.__name__)
                assert {x.dtype for x in inputs[:3]} == {torch.bfloat16}
                assert inputs[3].dtype == torch.float32
                call = super().forward(inputs, runs)
                results = call.results
                call.results = lambda states: results(states).to(inputs[2].dtype)
                return call

        return Noted

    def convolved(layer, x, weight, bias):
        used.add("causal_conv1d")
        return x

    monkeypatch.setattr(_fla, "serves", lambda x: x.dtype == torch.bfloat16)
    monkeypatch.setattr(_fla, "DeltaKernels", noted(_kinds.Delta))
    monkeypatch.setattr(_fla, "ScalarKernels", noted(_kinds.Scalar))
    monkeypatch.setattr(_fla.Convolution, "__call__", convolved)
    return used


@pytest.mark.parametrize(
    "family, kernels",
    [
        ("qwen3_next", {"Delta", "causal_conv1d"}), ("kimi_linear", {"Delta", "causal_conv1d"}),
        ("bamba", {"Scalar", "causal_conv1d"}), ("minimax", {"Scalar"}),
        ("lfm2", {"causal_conv1d"}),
    ],
)  # fmt: skip
def test_kernels(monkeypatch, family, kernels):
    """Models in 16 bits go to kernels, with decays in float32."""
    model = _made(family, "magi").bfloat16()
    used = _used_kernels(monkeypatch)
    plan = _plans(model, 1, "auto", None)
    model(**zoo.ours.shard(plan, zoo.labelled()[0], model=model)).logits.sum().backward()
    assert used == kernels


def test_plans_by_type_of_layer():
    """Recurrent layers go by documents, not by the window or the chunk of another layer."""
    model = _made("qwen3_next", "magi")
    whole = _plans(model, 1, "auto", None)
    local = zoo.ours.shard(whole, zoo.labelled()[0], model=model)
    narrow = packed.AttnMaskSpec.varlen(zoo.DOCUMENTS, window_size=(0, 0)).ranges()
    narrow = Plan.from_ranges(*narrow, sum(zoo.DOCUMENTS), cp_size=1, num_heads_q=4, num_heads_kv=2,
                              head_dim=8, on=whole.plan).bind()  # fmt: skip
    wanted = model(**local).logits
    for other in ("sliding_attention", "linear_attention"):
        local["magi_plan"] = {other: narrow, "full_attention": whole}
        assert torch.equal(model(**local).logits, wanted) == (other == "sliding_attention")
    for wrong in ({}, {"full_attention": whole, "linear_attention": 1}):
        with pytest.raises(TypeError, match=r"^magi_plan is a .*; allowed: a dict of a bound plan"):
            model(**{**local, "magi_plan": wrong})


class Asks(torch.nn.Module):
    def forward(self, **kwargs):
        return calling_model()


def test_a_dict_that_begins_with_no_plan():
    """Its model is found all the same, whose recurrent layers are then routed."""
    whole = _plans(_made("bamba", "magi"), 1, "auto", None)
    found = Asks()(magi_plan={"linear_attention": None, "full_attention": whole})
    assert found is not None and found[1] is whole


def test_documents_with_images():
    model, ids = _made("qwen3_next", "magi"), zoo.labelled()[0]
    bounds = torch.tensor([0, *zoo.DOCUMENTS]).cumsum(0).int()
    batch = {"input_ids": ids, "cu_seqlens": bounds}
    with pytest.raises(ValueError, match=r"^the batch is 2 documents, over whose ends a Qwen3Next"):
        packed.magi_prepare_vlm(model, batch, None)
    packed.magi_prepare_vlm(model, {"input_ids": ids}, None)


@pytest.mark.parametrize("family", ["qwen3_next", "bamba", "jamba"])
def test_caches(family):
    model = _made(family, "magi")
    local = zoo.ours.shard(_plans(model, 1, "auto", None), zoo.labelled()[0], model=model)
    with pytest.raises(ValueError, match=r"_state.? is given; allowed: .* \(use_cache=False\)"):
        model(**{**local, "use_cache": True})


def _mixer_of(model: torch.nn.Module) -> torch.nn.Module:
    return next(module for module in model.modules() if recurrences_of(module))


def test_mixers_of_ones_own():
    """A kind of a mixer that is served is; one that computes by another function besides is not."""
    model = _made("qwen3_next", "magi")
    mixer = _mixer_of(model)
    kind = type(mixer)
    mixer.__class__ = type("MyDeltaNet", (kind,), {"__module__": "types"})
    whole = _plans(model, 1, "auto", None)
    local = zoo.ours.shard(whole, zoo.labelled()[0], model=model)
    wanted = model(**local).logits
    mixer.__class__ = kind
    assert torch.equal(model(**local).logits, wanted)


def my_scan(x):
    return x


class MyScan(torch.nn.Module):
    def forward(self, x):
        return my_scan(causal_conv1d_fn(x))


class MyConvolution(torch.nn.Module):
    """Without its recurrence, if it has a state."""

    def forward(self, x):
        return causal_conv1d_fn(x)


class MyRecurrence(torch.nn.Module):
    """Without its convolution, if it has one."""

    def forward(self, x):
        return torch_chunk_gated_delta_rule(self.conv1d(x))


@pytest.mark.parametrize("kind", [MyScan, MyConvolution, MyRecurrence])
def test_half_of_a_mixer(kind):
    model, mixer = _made("qwen3_next", "magi"), kind()
    assert is_served(mixer) == (kind is not MyScan)
    mixer.A_log, mixer.conv1d = torch.nn.Parameter(torch.ones(1)), torch.nn.Conv1d(1, 1, 1)
    assert not is_served(mixer)
    model.model.layers[0].linear_attn = mixer
    with pytest.raises(ValueError, match="has layers of type 'linear_attention'"):
        zoo.ours.check_model(model)


@over(3)
@pytest.mark.parametrize("family", OF_EACH)
def test_over_ranks(group, family):
    assert documents(group, family, "auto") <= TOLERANCE


@over(2)
def test_checkpointed(group):
    """Recomputation exchanges nothing again where checkpoints keep attention."""
    exchanges = []
    for change in (None, "kept"):
        with Counts() as counted:
            assert documents(group, "qwen3_next", "contiguous", change) <= TOLERANCE
        exchanges.append(counted.found[1])
    assert exchanges[0] == exchanges[1] > 0


@over(4)  # a mesh is of all processes
@pytest.mark.parametrize("family", ["qwen3_next", "bamba"])
def test_sharded_parameters(group, family):
    assert documents(group, family, "auto", "sharded") <= TOLERANCE


@over(2)
def test_compiled(group):
    assert documents(group, "lfm2", "contiguous", "compiled") <= TOLERANCE


@over(2)
@pytest.mark.parametrize("family", ["qwen3_next", "bamba"])
def test_trees(group, family):
    assert tree(group, family) <= TOLERANCE
