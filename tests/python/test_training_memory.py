# SPDX-License-Identifier: Apache-2.0
"""What trainings are said to take, against the tensors of small steps, counted."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
import types
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from magi_attention import _memory, masks
from magi_attention.config import DistAttnConfig
from magi_attention.plan import Plan
from magi_attention.training import ModelShape, Training, causal_memory, longest_sequence

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))
bench = pytest.importorskip("memory", reason="the benches are not here")
ROWS = 512
trainings = pytest.importorskip("distributed.trainings")
SHAPE = trainings.Shape(64, 256, 3, 8, 4, 64)
MODEL = ModelShape(3, 64, 256, 8, 4, 8, 64)
CONFIG = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
LLAMA = ModelShape(32, 4096, 14336, 32, 8, 128, 128256)


class Held(TorchDispatchMode):
    """Bytes of storages that operators make, while any lives."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self._add(result.untyped_storage())
        return results

    def _add(self, storage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return

        def leave(_) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, leave)
        self.now += size
        self.most = max(self.most, self.now)


class Norm(torch.autograd.Function):
    """Keeps what the norm of GPUs keeps."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight, torch.ones(len(x)))
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        _, weight, _ = ctx.saved_tensors
        return gradient * weight, torch.empty_like(weight)


def most_of_a_step(monkeypatch, training: Training) -> int:
    """Of a forward and backward, weights and their gradients with it."""
    norm = "torch.nn.functional.rms_norm"
    monkeypatch.setattr(norm, lambda x, size, weight, epsilon: Norm.apply(x, weight))
    monkeypatch.setattr(bench, "Ours", trainings.Alone)
    given = types.SimpleNamespace(tiny=False)
    run = object.__new__(bench.Run)
    run.bench = types.SimpleNamespace(
        device=torch.device("cpu"), given=given, group=None, size=1, rank=0
    )
    run.shape, run.tokens, run.training = SHAPE, ROWS, training
    with Held() as held:
        run.model = run._make()
        side = run.side(ROWS)
        held.most = held.now
        run.model(*side.rows, side.attend).backward()
    return held.most


CHOICES = {
    "recomputed": {},
    "all": {"keeps": "all"},
    "saved": {"keeps": "attention"},
    "saved, over rows": {"keeps": "attention", "layer_rows": 256},
    "by groups": {"head_groups": 4},
    "by groups, over rows": {"head_groups": 2, "layer_rows": 256},
    "all, over rows": {"keeps": "all", "layer_rows": 256},
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_step_holds_what_is_said(monkeypatch, choice):
    training = Training(optimizer="sgd", weight_bytes=2, loss_rows=64, **choice)
    held = most_of_a_step(monkeypatch, training)
    told = causal_memory(MODEL, training, ROWS)
    assert held == pytest.approx(told.peak - told.parts["libraries"], rel=0.03)


def test_sizes_of_a_configuration():
    sizes = dict(zip((*CONFIG, "vocab_size"), (3, 64, 256, 8, 64)))
    config = types.SimpleNamespace(**sizes, num_key_value_heads=4, tie_word_embeddings=False)
    model = ModelShape.from_config(config)
    assert model == MODEL
    weights = sum(p.numel() for p in bench.make_plain(SHAPE).parameters())
    assert weights == model.layers * model.layer_weights + model.other_weights
    config = types.SimpleNamespace(**sizes, head_dim=16, tie_word_embeddings=True)
    model = ModelShape.from_config(config, element_bytes=4)
    assert model == ModelShape(3, 64, 256, 8, 8, 16, 64, True, 4)
    with pytest.raises(ValueError, match=r"^config has no vocab_size; allowed: one of a decoder"):
        ModelShape.from_config(types.SimpleNamespace(**dict.fromkeys(CONFIG, 8)))
    for name in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        for dense in ({name: 1}, {name: [1, 1]}, {name: 128, "is_moe": False}):
            assert ModelShape.from_config(types.SimpleNamespace(**sizes, **dense)).kv_heads == 8
        for experts in ({name: 128}, {name: [64, 128]}, {name: 128, "is_moe": True}):
            with pytest.raises(ValueError, match=rf"^config has {name} .*128.?; allowed: none or"):
                ModelShape.from_config(types.SimpleNamespace(**sizes, **experts))


def test_shards_and_optimizers():
    training = Training(shards=4, loss_rows=1024)
    memory = causal_memory(LLAMA, training, 8192, 4)
    weights = LLAMA.layers * LLAMA.layer_weights + LLAMA.other_weights
    assert memory.parts["weights"] == weights == memory.parts["optimizer"] // 2
    plain = causal_memory(LLAMA, dataclasses.replace(training, optimizer="sgd"), 8192, 4)
    assert memory.peak - plain.peak == 2 * weights
    assert memory.outside > 0 and "window of nvlink" in str(memory)
    nccl = causal_memory(LLAMA, training, 8192, 4, transport="nccl")
    assert nccl.outside == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_longest_sequence(ranks):
    training, most = Training(keeps="attention", loss_rows=1024, shards=8), 40 << 30
    tokens = longest_sequence(LLAMA, training, most, ranks)
    assert tokens % (1024 * ranks) == 0 < tokens
    fits = [
        memory.peak + memory.outside <= most
        for more in (0, 1024 * ranks)
        for memory in [causal_memory(LLAMA, training, tokens + more, ranks)]
    ]
    assert fits == [True, False]
    assert longest_sequence(LLAMA, training, 1 << 30) == 0


def test_a_bound_on_exchange_memory():
    """It is the plan's: areas are smaller, and documents that cannot keep it do not fit."""
    training, kept = Training(keeps="attention", loss_rows=1024, shards=8), 256 << 20
    free, bound, tight = (DistAttnConfig(max_exchange_bytes=x) for x in (0, kept, 1 << 20))
    sizes = [causal_memory(LLAMA, training, 65536, 2, config=x).outside for x in (free, bound)]
    assert sizes[0] > 2 * sizes[1] > 0
    assert longest_sequence(LLAMA, training, 40 << 30, 2, config=tight) < 65536
    with pytest.raises(ValueError, match="max_exchange_bytes is 1048576; allowed: 0 "):
        causal_memory(LLAMA, training, 65536, 2, config=tight)


WHOLE = Plan.from_mask(
    masks.from_cu_seqlens([0, 64]), cp_size=1, num_heads_q=8, num_heads_kv=4, head_dim=8
)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: Training(keeps="some"), ValueError, "keeps is 'some'; allowed: all, inputs"),
        (lambda: Training(optimizer="lion"), ValueError, "optimizer is 'lion'; allowed: adamw"),
        (lambda: Training(shards=-1), ValueError, "shards is -1; allowed: 0 to"),
        (lambda: Training(keeps="all", offload_layers=1), ValueError, "keeps is 'all'; allowed w"),
        (lambda: dataclasses.replace(MODEL, heads=9), ValueError, "heads is 9; allowed: a mult"),
        (lambda: dataclasses.replace(MODEL, layers=0), ValueError, "layers is 0; allowed: 1 to"),
        (lambda: dataclasses.replace(MODEL, hidden=1.5), TypeError, "hidden is 1.5; allowed: an"),
        (lambda: WHOLE.memory(LLAMA), ValueError, r"plan has heads \(q, kv, dim\) \(8, 4, 8\); al"),
        (lambda: WHOLE.memory(SHAPE), TypeError, "model is a Shape; allowed: a ModelShape"),
        (lambda: WHOLE.memory(MODEL, {}), TypeError, "training is a dict; allowed: a Training"),
        (lambda: WHOLE.memory(MODEL, transport="tcp"), ValueError, "transport is 'tcp'; allowed"),
        (lambda: WHOLE.memory(MODEL, Training(head_groups=3)), ValueError, "head_groups is 3; all"),
        (lambda: longest_sequence(MODEL, Training(), 0), ValueError, "gpu_bytes is 0; allowed: 1"),
    ],
)
def test_others_are_refused(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_the_command(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(
        '{"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96,'
        ' "num_attention_heads": 4, "vocab_size": 100}'
    )
    assert _memory.main(["--tokens", "4096", "--config", str(path), "--keeps", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("most is held in ") and lines[-1].endswith(" tokens")
    for bad in ("--heads 7", f"--config {tmp_path}", "--shards -1", "--gib nan"):
        assert _memory.main(["--tokens", "4096", *bad.split()]) == 2
        assert len(capsys.readouterr().out.splitlines()) == 1
    assert _memory.main(["--tokens", "9", "--max-exchange-bytes", "-1"]) == 2
    assert "max_exchange_bytes is -1; allowed: 0 to " in capsys.readouterr().out
    with pytest.raises(SystemExit), contextlib.redirect_stderr(None):
        _memory.main(["--tokens", "many"])
