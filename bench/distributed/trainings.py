# SPDX-License-Identifier: Apache-2.0
"""Steps of one Llama whose sequence ranks share: by this package, by Ulysses, by torch's
context_parallel, and not at all (alone).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import sys
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from distributed.baselines import Ulysses
from magi_attention import masks
from magi_attention.backends._table import is_usable
from magi_attention.config import DistAttnConfig
from magi_attention.plan import Plan
from magi_attention.training import (
    Offload,
    attend_by_groups,
    loss_over_rows,
    over_rows,
    save_attention,
)

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples" / "llama_cp"))
from model import Llama, Shape, make_plain, rotate

IGNORED = -100
SIDES = ("ours", "ulysses", "torch_cp", "alone")
# Recomputed whole; attention saved; and offloaded. Another: nothing is recomputed.
POLICIES = ("whole", "saved", "offloaded")
CHUNK = 8192  # rows of the loss, and of the longest sequence's functions of rows
OTHERS = ("fa4", "cudnn", "flex")  # backends of other packages, the fastest first
SDPA_OPS = [
    getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention").default
    for name in ("cudnn", "flash")
]


class Data(NamedTuple):
    """One packed sequence, the same on all ranks: int64 [rows]; lengths: of its documents."""

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    lengths: list[int]

    @property
    def bounds(self) -> torch.Tensor:
        return torch.tensor([0, *self.lengths]).cumsum(0)

    @property
    def num_learned(self) -> int:
        return sum(self.lengths) - len(self.lengths)


def data_of(lengths: list[int], vocabulary: int, device: torch.device, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary, (sum(lengths),), generator=generator)
    labels = ids.roll(-1)
    labels[torch.tensor(lengths).cumsum(0) - 1] = IGNORED
    positions = torch.cat([torch.arange(n) for n in lengths])
    return Data(ids.to(device), labels.to(device), positions.to(device), lengths)


def sdpa(q, k, v, **options) -> torch.Tensor:
    """torch's causal attention of [rows, heads, dim] under cuDNN where it is there. The function is
    looked up in each call, as context_parallel puts another in its place.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    turned = (t.transpose(0, 1)[None] for t in (q, k, v))
    with sdpa_kernel(kinds, set_priority=True):
        out = functional.scaled_dot_product_attention(*turned, is_causal=True, **options)
    return out[0].transpose(0, 1)


def plan_of(
    data: Data, ranks: int, heads: int, kv_heads: int, dim: int, exchange_bytes: int | None = None
) -> Plan:
    """A plan of the documents."""
    return Plan.from_mask(
        masks.from_cu_seqlens(data.bounds), cp_size=ranks, num_heads_q=heads,
        num_heads_kv=kv_heads, head_dim=dim,
        config=DistAttnConfig(max_exchange_bytes=exchange_bytes),
    )  # fmt: skip


class Side:
    """Rows of this rank under one way to share. is_alone: whether each rank has a sequence."""

    is_alone = False
    save = staticmethod(save_attention)  # the contexts of checkpoints that keep attention

    def __init__(self, data: Data, shape: Shape, group: dist.ProcessGroup) -> None:
        self.data, self.shape, self.group = data, shape, group
        self.rows = data.ids, data.labels, data.positions

    @property
    def loss_factor(self) -> float:
        """Of the sum of this rank's losses, as FSDP averages gradients over ranks."""
        return dist.get_world_size(self.group) / self.data.num_learned

    def entered(self):
        """What a step, backward included, runs inside of."""
        return contextlib.nullcontext()

    def attend(self, q, k, v) -> torch.Tensor:
        raise NotImplementedError


class Ours(Side):
    """A plan of the documents; exchange_bytes: a bound on its exchange memory."""

    def __init__(
        self, data: Data, shape: Shape, group: dist.ProcessGroup, exchange_bytes: int | None = None
    ) -> None:
        super().__init__(data, shape, group)
        self._exchange_bytes = exchange_bytes
        self.bound = self.bind(shape.heads, shape.kv_heads)
        self.dispatch(data)

    def dispatch(self, data: Data) -> None:
        """This rank's rows of such documents."""
        self.rows = tuple(
            self.bound.dispatch(x, pad_value=pad)
            for x, pad in zip((data.ids, data.labels, data.positions), (0, IGNORED, 0))
        )

    def bind(self, heads: int, kv_heads: int):
        """The plan for so many heads."""
        size = 1 if self.is_alone else dist.get_world_size(self.group)
        sizes = size, heads, kv_heads, self.shape.head_dim
        plan = plan_of(self.data, *sizes, exchange_bytes=self._exchange_bytes)
        return plan.bind(None if self.is_alone else self.group)

    def attend(self, q, k, v) -> torch.Tensor:
        return self.bound.calc_attn(q, k, v)[0]


class Alone(Ours):
    """Every rank has a whole sequence, here the same one."""

    is_alone = True

    @property
    def loss_factor(self) -> float:
        return 1 / self.data.num_learned


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ulysses, *qkv):
        ctx.ulysses = ulysses
        return tuple(ulysses._to_heads(*(t.contiguous() for t in qkv)))

    @staticmethod
    def backward(ctx, *gradients):
        return None, *ctx.ulysses._to_rows(*(g.contiguous() for g in gradients))


class _ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ulysses, out):
        ctx.ulysses = ulysses
        return ulysses._to_rows(out.contiguous())[0]

    @staticmethod
    def backward(ctx, dout):
        return None, ctx.ulysses._to_heads(dout.contiguous())[0]


class UlyssesSide(Side):
    """Equal runs of rows; all rows of a share of the heads for FlashAttention-4's own calls, or for
    the next of OTHERS that is installed, or for our kernel.
    """

    def __init__(self, data: Data, shape: Shape, group: dist.ProcessGroup) -> None:
        super().__init__(data, shape, group)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.rows = tuple(x.chunk(size)[rank] for x in self.rows)
        self._ulysses = Ulysses(group, None)
        heads = shape.heads // size, shape.kv_heads // size
        usable = [name for name in OTHERS if is_usable(name)] if data.ids.is_cuda else []
        self.kernel = (*usable, "ffa")[0]
        self._inner = plan_of(data, 1, *heads, shape.head_dim).bind(None, backend=self.kernel)

    def attend(self, q, k, v) -> torch.Tensor:
        out, _ = self._inner.calc_attn(*_ToHeads.apply(self._ulysses, q, k, v))
        return _ToRows.apply(self._ulysses, out)


class TorchCp(Side):
    """torch.distributed.tensor.experimental.context_parallel, which knows of one sequence."""

    save = staticmethod(functools.partial(create_selective_checkpoint_contexts, SDPA_OPS))

    def __init__(self, data: Data, shape: Shape, group: dist.ProcessGroup) -> None:
        super().__init__(data, shape, group)
        if len(data.lengths) > 1 or not data.ids.is_cuda:
            raise NotImplementedError("torch_cp has one causal sequence, on GPUs")
        self._mesh = DeviceMesh.from_group(group, data.ids.device.type)
        takes = torch.tensor(self._takes_grouped_queries(), dtype=torch.int32)
        dist.all_reduce(takes, dist.ReduceOp.MIN, group)
        self._has_gqa = bool(takes)  # of all ranks, which compute one attention

    def _takes_grouped_queries(self) -> bool:
        def leaf(heads: int) -> torch.Tensor:
            size = 128, heads, self.shape.head_dim
            made = torch.randn(size, device=self.data.ids.device, dtype=torch.bfloat16)
            return made.requires_grad_()

        heads = self.shape.heads, self.shape.kv_heads, self.shape.kv_heads
        try:
            with self.entered():
                sdpa(*map(leaf, heads), enable_gqa=True).sum().backward()
        except Exception as error:
            print(f"torch_cp repeats keys: {error!r}"[:400], file=sys.stderr)
            return False
        return True

    @contextlib.contextmanager
    def entered(self):
        from torch.distributed.tensor.experimental import context_parallel

        buffers = [x[None].clone() for x in (self.data.ids, self.data.labels, self.data.positions)]
        with context_parallel(self._mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1]):
            self.rows = tuple(buffer[0] for buffer in buffers)
            yield

    def attend(self, q, k, v) -> torch.Tensor:
        if self._has_gqa:
            return sdpa(q, k, v, enable_gqa=True)
        repeats = q.shape[1] // k.shape[1]
        return sdpa(q, *(t.repeat_interleave(repeats, 1) for t in (k, v)))


MAKERS = {"ours": Ours, "ulysses": UlyssesSide, "torch_cp": TorchCp, "alone": Alone}


class Policy:
    """What checkpoints of all layers do, which may change from step to step."""

    def __init__(self) -> None:
        self.choose("whole")

    def choose(self, name: str, side: Side | None = None) -> None:
        save = save_attention if side is None else side.save
        contexts = {"whole": noop_context_fn, "saved": save}
        self.host = contextlib.nullcontext()
        if name == "offloaded":
            self.host = host = Offload()
            # What other packages' operators gave stays on the GPU, as Offload does not know them.
            is_ours = save is save_attention
            contexts[name] = host.save_attention if is_ours else lambda: host.recompute() and save()
        self.context_fn = contexts.get(name)


class Checkpointed(nn.Module):
    """A layer that is recomputed in the backward."""

    def __init__(self, layer: nn.Module, policy: Policy) -> None:
        super().__init__()
        self.layer, self._policy = layer, policy

    def forward(self, *inputs):
        if self._policy.context_fn is None:
            return self.layer(*inputs)
        return checkpoint(
            self.layer, *inputs, use_reentrant=False, preserve_rng_state=False,
            context_fn=self._policy.context_fn,
        )  # fmt: skip


class Trained(nn.Module):
    """The sum of the losses of a side's rows, at most loss_rows at once."""

    loss_rows = CHUNK

    def __init__(self, llama: Llama, policy: Policy) -> None:
        super().__init__()
        layers = llama.model.layers
        for number, layer in enumerate(layers):
            layers[number] = Checkpointed(layer, policy)
        self.llama, self.policy = llama, policy

    def forward(self, ids, labels, positions, attend):
        with self.policy.host:
            hidden = self.llama.model(ids, positions, attend)
        return loss_over_rows(self.llama.lm_head, hidden, labels, rows=self.loss_rows)


class InParts(nn.Module):
    """A layer of the example for the longest sequences: q, k and v of some kv heads at a time, and
    what is a function of rows over chunks of `rows`, 0: of all. attend: bound plan of one group,
    and groups.
    """

    def __init__(self, layer: nn.Module, rows: int = CHUNK) -> None:
        super().__init__()
        self.layer, self.rows = layer, rows

    def forward(self, x, turns, attend):
        def rest(x, attended):
            x = x + attended
            return x + self.layer.mlp(self.layer.post_attention_layernorm(x))

        return self._over(rest, x, self._attended(x, turns, *attend))

    def _over(self, function, *tensors):
        return over_rows(function, *tensors, rows=self.rows) if self.rows else function(*tensors)

    def _attended(self, x, turns, bound, groups: int):
        layer, of = self.layer, self.layer.self_attn
        if groups == 1:
            return of(layer.input_layernorm(x), turns, lambda *qkv: bound.calc_attn(*qkv)[0])

        def project(x, group: int):
            def rows(x, turns):
                x = layer.input_layernorm(x)
                q, k, v = (
                    functional.linear(x, p.weight.chunk(groups)[group]).unflatten(
                        1, (-1, of.shape.head_dim)
                    )
                    for p in (of.q_proj, of.k_proj, of.v_proj)
                )
                turned = (rotate(t, turns) for t in (q, k))
                return torch.cat((*turned, v), 1)

            kv_heads = of.shape.kv_heads // groups
            heads = (of.shape.heads // groups, kv_heads, kv_heads)
            return self._over(rows, x, turns).split(heads, 1)

        def finish(out, group: int):
            return functional.linear(out.flatten(1), of.o_proj.weight.chunk(groups, 1)[group])

        return attend_by_groups(bound, x, project, groups, finish=finish)


def make_model(
    shape: Shape, device: torch.device, group: dist.ProcessGroup, in_parts: bool = False
) -> Trained:
    """The same weights on all ranks."""
    with device:
        model = Trained(make_plain(shape), Policy())
    if in_parts:
        for checkpointed in model.llama.model.layers:
            checkpointed.layer = InParts(checkpointed.layer)
    return shard(model, device, group)


def shard(model: Trained, device: torch.device, group: dist.ProcessGroup) -> Trained:
    """The model itself, sharded by FSDP2; products are of bfloat16 on GPUs."""
    mesh = DeviceMesh.from_group(group, device.type)
    precision = MixedPrecisionPolicy()
    if device.type == "cuda":
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = [fully_shard(x, mesh=mesh, mp_policy=precision) for x in model.llama.model.layers]
    # Asked for a layer ahead, as the host is little ahead of the GPU where layers have few rows.
    for layer, following in itertools.pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])
    fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    return model
