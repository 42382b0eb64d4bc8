# SPDX-License-Identifier: Apache-2.0
"""What a training takes of a GPU, before anything is allocated (docs/training.md).

A step is followed through the moments at which much is held: the loss; of each layer's backward
the MLP's and attention's; the reduction of the embedding's gradients; the optimizer. The one that
holds most is the peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

from magi_attention.common._arguments import as_bool, check_choice, check_int, check_kind
from magi_attention.common.plan_report import PlanReport
from magi_attention.plan_memory import memory_over_nvlink

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_KEEPS = ("all", "inputs", "attention")
_OPTIMIZERS = {"adamw": 2, "momentum": 1, "sgd": 0}  # states of a weight, in its type
_SUM_BYTES = 4  # float32: logits, reductions, sums of attention
_LIBRARY_BYTES = 64 << 20  # cuBLAS
_MOST = 1 << 40
_HELD, _LAYER, _SUMS = "gradients before their sum", "layer at work", "sums of attention"


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a dense decoder with gated MLPs and RMS norms, as Llama and Qwen3 are.
    element_bytes: of a number that layers compute with. ValueError or TypeError names a size that
    is none.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    is_tied: bool = False
    element_bytes: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "is_tied":
                check_int(field.name, getattr(self, field.name), 1, _MOST)
        as_bool("is_tied", self.is_tied)
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}; allowed: a multiple of {self.kv_heads}")

    @staticmethod
    def from_config(config: Any, element_bytes: int = 2) -> ModelShape:
        """Sizes from a configuration of transformers; ValueError for one that lacks any, and for
        mixtures of experts.
        """
        names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
        for name in (*names, "vocab_size"):
            if getattr(config, name, None) is None:
                raise ValueError(f"config has no {name}; allowed: one of a decoder, like Llama's")
        for name in _EXPERTS if getattr(config, "is_moe", None) is not False else ():
            counts = getattr(config, name, None) or 0  # a list: of layers or modalities
            if (max(counts) if isinstance(counts, (list, tuple)) else counts) > 1:
                raise ValueError(f"config has {name} {counts}; allowed: none or 1, a dense model")
        layers, hidden, intermediate, heads = (getattr(config, name) for name in names)
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        dim = getattr(config, "head_dim", None) or hidden // heads
        tied = bool(getattr(config, "tie_word_embeddings", False))
        sizes = layers, hidden, intermediate, heads, kv_heads, dim, config.vocab_size
        return ModelShape(*sizes, tied, element_bytes)

    @property
    def layer_weights(self) -> int:
        """Numbers in the weights of a layer."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim
        return self.hidden * (attention + 3 * self.intermediate + 2)

    @property
    def other_weights(self) -> int:
        """Numbers in the embedding, the last norm and the head."""
        return self.hidden * (self.vocabulary * (1 if self.is_tied else 2) + 1)


@dataclass(frozen=True)
class Training:
    """Options of a step (docs/training.md).

    - keeps: of a layer until its backward: "all"; "inputs", the layer is recomputed; "attention" as
      well, as with save_attention.
    - offload_layers: as Offload(layers=); 0: nothing moves to the host.
    - head_groups: as num_groups of attend_by_groups, which keeps attention.
    - layer_rows: as `rows` of over_rows for what follows attention and for projections of groups;
      loss_rows: as `rows` of loss_over_rows; 0: all at once.
    - optimizer: "adamw", "momentum" or "sgd", of one kernel (fused=True).
    - weight_bytes: of a weight, a gradient and a state. shards: ranks over which FSDP2 shards these
      (each layer, then the model without resharding, gathers in the model's type, reductions in
      float32); 0: no FSDP, each rank has all.
    """

    keeps: str = "inputs"
    offload_layers: int = 0
    head_groups: int = 1
    layer_rows: int = 0
    loss_rows: int = 0
    optimizer: str = "adamw"
    weight_bytes: int = 4
    shards: int = 0

    def __post_init__(self) -> None:
        check_choice("keeps", self.keeps, _KEEPS)
        check_choice("optimizer", self.optimizer, tuple(_OPTIMIZERS))
        lowest = {"head_groups": (1, _MOST), "weight_bytes": (1, 8), "offload_layers": (0, 2)}
        for field in fields(self):
            if field.name not in ("keeps", "optimizer"):
                bounds = lowest.get(field.name, (0, _MOST))
                check_int(field.name, getattr(self, field.name), *bounds)
        if self.offload_layers and self.keeps == "all":
            raise ValueError("keeps is 'all'; allowed with offload_layers: inputs, attention")


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that a rank holds at the moment of most.

    - moment: in words. parts: of torch's memory by what holds them.
    - outside: of the GPU beside torch: the window of the transport nvlink.
    """

    moment: str
    parts: dict[str, int]
    outside: int = 0

    @property
    def peak(self) -> int:
        """The number that torch.cuda.max_memory_allocated reports."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        rows = [*self.parts.items(), ("torch's memory", self.peak)]
        if self.outside:
            rows.append(("beside torch, the window of nvlink", self.outside))
        lines = [f"{name:36s} {size / 2**30:8.2f} GiB" for name, size in rows if size]
        return "\n".join([f"most is held in {self.moment}", *lines])


class _Plan(Protocol):
    report: PlanReport
    cp_size: int

    def rows_of(self, rank: int) -> int: ...
    def to_json(self) -> str: ...


def memory_of_plan(
    plan: _Plan, model: ModelShape, training: Training, transport: str
) -> tuple[TrainingMemory, ...]:
    """Plan.memory."""
    check_kind("model", model, ModelShape, "a ModelShape")
    check_kind("training", training, Training, "a Training")
    check_choice("transport", transport, ("nvlink", "nccl"))
    groups, report = training.head_groups, plan.report
    if model.kv_heads % groups:
        raise ValueError(
            f"head_groups is {groups}; allowed: a divisor of {model.kv_heads} kv_heads"
        )
    seen = (report.num_heads_q, report.num_heads_kv, report.head_dim)
    heads = (model.heads // groups, model.kv_heads // groups, model.head_dim)
    if seen != heads:
        raise ValueError(
            f"plan has heads (q, kv, dim) {seen}; allowed: {heads}, of one of head_groups {groups}"
        )
    exchanges: list[tuple[int, int]] = [(0, 0)]
    if plan.cp_size > 1 and transport == "nvlink":
        exchanges = [(m.backward, m.window) for m in memory_over_nvlink(plan)]
    elif plan.cp_size > 1:  # what a rank holds of others, and as much on its way
        exchanges = [(2 * size, 0) for size in report.rank_memory]
    found = []
    for rank, (sums, window) in enumerate(exchanges):
        step = _Step(model, training, max(1, plan.rows_of(rank)), sums)
        moment, parts = max(step.moments(), key=lambda one: sum(one[1].values()))
        found.append(TrainingMemory(moment, parts | {"libraries": _LIBRARY_BYTES}, window))
    return tuple(found)


class _Step:
    """The moments of a step. Sizes of a row are in numbers of the model's type, else in bytes."""

    def __init__(self, model: ModelShape, training: Training, rows: int, sums: int) -> None:
        self.model, self.training, self.rows, self.sums = model, training, rows, sums
        self.bytes = rows * model.element_bytes  # of one number in each row
        self.q = model.heads * model.head_dim
        self.k = model.kv_heads * model.head_dim
        self.lse = rows * model.heads * _SUM_BYTES
        self.keeps_attention = training.keeps != "inputs" or training.head_groups > 1
        self.is_sharded = training.shards > 0
        self.chunk_bytes = min(training.layer_rows or rows, rows) * model.element_bytes
        self.gradient_bytes = model.element_bytes if self.is_sharded else training.weight_bytes

    def moments(self) -> Iterator[tuple[str, dict[str, int]]]:
        layers = self.model.layers
        yield "the loss", self._at(layers, self._loss())
        for layer in reversed(range(layers)):
            where = f"the backward of layer {layer}"
            yield f"{where}, MLP", self._at(layer, self._mlp())
            yield f"{where}, attention", self._at(layer, self._attention())
        if self.is_sharded:
            yield "the reduction of the embedding's gradients", self._at(-1, self._last())
        yield "the optimizer's step", self._at(-1, {})

    def _at(self, layer: int, parts: dict[str, int]) -> dict[str, int]:
        """Bytes while a layer runs backward; the number of layers: before that of any; -1: after
        that of all. parts: what comes on top.
        """
        model, training = self.model, self.training
        is_layer = 0 <= layer < model.layers
        done = model.layers - 1 - layer if is_layer else model.layers if layer < 0 else 0
        weights = model.layers * model.layer_weights + model.other_weights
        gradients = done * model.layer_weights + (model.other_weights if layer < 0 else 0)
        gathered = held = 0
        if self.is_sharded and layer >= 0:
            ahead = training.shards > 1 and layer > 0  # the next is fetched before it is needed
            gathered = model.other_weights + (is_layer + ahead) * model.layer_weights
            held = model.layer_weights * _SUM_BYTES if done else 0
        of_rank = training.weight_bytes / max(training.shards, 1)
        inputs, attention, everything = self._kept(layer)
        found = {
            "weights": int(weights * of_rank),
            "optimizer": int(_OPTIMIZERS[training.optimizer] * weights * of_rank),
            "gradients": int(gradients * of_rank),
            _HELD: held + (self._head_gradient() if is_layer else 0),
            "gathered weights": gathered * model.element_bytes,
            "inputs of layers": inputs,
            "saved attention": attention,
            "saved of layers": everything,
        }
        for name, size in parts.items():
            found[name] = found.get(name, 0) + size
        return found

    def _kept(self, layer: int) -> tuple[int, int, int]:
        """Inputs, attention and all else of the layers whose backward is not done."""
        count = min(layer + 1, self.model.layers)
        if self.training.offload_layers:
            count = min(count, self.training.offload_layers)
        inputs = count * self.bytes * self.model.hidden
        if self.training.offload_layers and self.training.head_groups > 1:
            count -= 1  # that of the layer at work comes by groups
        attention = count * self._out() if self.keeps_attention else 0
        return inputs, attention, count * self._inside() if self.training.keeps == "all" else 0

    def _out(self) -> int:
        """out and lse of a layer."""
        return self.bytes * self.q + self.lse

    def _inside(self) -> int:
        """Bytes that the backward of a layer needs beside its input and attention's results."""
        model, training = self.model, self.training
        numbers = self._rest()
        if training.head_groups == 1:  # the norm's result, q, k, v, cosines and sines
            numbers += model.hidden + self.q + 2 * self.k + 2 * model.head_dim
        return self.bytes * numbers

    def _rest(self) -> int:
        """Numbers of a row that follow attention in _inside: attention's sum, or that with the
        input, its norm, gate, its silu, up, their product.
        """
        if self.training.layer_rows:
            return self.model.hidden
        return 2 * self.model.hidden + 4 * self.model.intermediate

    def _current(self) -> int:
        """Bytes of a layer that it holds while it runs backward alone."""
        inside = 0 if self.training.keeps == "all" else self._inside()
        return inside + (0 if self.keeps_attention else self._out())

    def _mlp(self) -> dict[str, int]:
        model = self.model
        layer = self._current() + self.bytes * model.hidden  # the gradient that comes
        weights = model.hidden * model.intermediate
        if self.training.layer_rows:  # gradients of the chunks before; inside of this one
            layer += (self.bytes - self.chunk_bytes) * model.hidden
            layer += self.chunk_bytes * (6 * model.intermediate + 2 * model.hidden)
            weights *= 3
        else:
            layer += 2 * self.bytes * model.intermediate
        return {_LAYER: layer, _HELD: weights * self.gradient_bytes}

    def _attention(self) -> dict[str, int]:
        model, groups = self.model, self.training.head_groups
        numbers = model.hidden + 2 * (self.q + self.k) // groups  # dx; dout, dq, dk, dv
        if groups > 1:  # dx of the groups before, q, k and v of this one, what they come from
            numbers += model.hidden + (self.q + 2 * self.k) // groups
            numbers += 0 if self.training.layer_rows else model.hidden
            numbers += self.q // groups if self.training.offload_layers else 0
        layer = self._current() + self.bytes * (numbers - self._rest())
        return {
            _LAYER: layer,
            _SUMS: (self.rows * self.q * _SUM_BYTES + 2 * self.lse) // groups + self.sums,
            _HELD: model.hidden * (3 * model.intermediate + self.q) * self.gradient_bytes,
        }

    def _head_gradient(self) -> int:
        return self.model.vocabulary * self.model.hidden * self.gradient_bytes

    def _last(self) -> dict[str, int]:
        """The reduction of what lies outside of layers: its input, and the gradients that it came
        from, of which the head's stay until the result is there.
        """
        model = self.model
        result = model.other_weights * self.training.weight_bytes // self.training.shards
        before = model.other_weights * model.element_bytes - result
        return {_HELD: model.other_weights * _SUM_BYTES + max(before, self._head_gradient())}

    def _loss(self) -> dict[str, int]:
        """The log probabilities, their gradient and that of the logits at once, in float32; the
        last layer's result, its norm, and the gradient of that.
        """
        rows = min(self.training.loss_rows or self.rows, self.rows)
        return {
            "logits": rows * self.model.vocabulary * 3 * _SUM_BYTES,
            _LAYER: 3 * self.bytes * self.model.hidden,
            _HELD: self._head_gradient() if rows < self.rows else 0,
        }
