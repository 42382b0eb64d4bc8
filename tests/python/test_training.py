# SPDX-License-Identifier: Apache-2.0
"""What a training keeps, recomputes and moves to host memory, against a whole layer."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from magi_attention import attention, masks
from magi_attention._native.attention import Call
from magi_attention.plan import Plan
from magi_attention.training import (
    ATTENTION_OPS,
    Offload,
    attend_by_groups,
    keeping_attention,
    loss_over_rows,
    over_rows,
    save_attention,
)
from magi_attention.training.offload import _Stored
from ranks import over
from test_sparse_ranks import bound_under, lists_inside, tensors, window_of

ROWS, HEADS, DIM, WIDTH = 40, (8, 4), 8, 24


class Counts:
    """How often attention ran forward and bytes were exchanged, inside of `with`. NOTE: no mocks,
    which keep the tensors that they were called with.
    """

    def __enter__(self) -> Counts:
        self.found = [0, 0]
        self._patches = [
            mock.patch.object(Call, "forward", self._counting(0, Call.forward)),
            mock.patch.object(dist, "all_to_all_single", self._counting(1, dist.all_to_all_single)),
        ]
        for patch in self._patches:
            patch.__enter__()
        return self

    def __exit__(self, *error) -> None:
        for patch in self._patches:
            patch.__exit__(*error)

    def _counting(self, number: int, function):
        def counted(*args, **options):
            self.found[number] += 1
            return function(*args, **options)

        return counted


class Layer(nn.Module):
    """Attention with a residual connection; each rank has the same weights."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(seed)
        heads = HEADS[0] + 2 * HEADS[1]
        self.qkv = nn.Linear(WIDTH, heads * DIM, bias=False, dtype=dtype)
        self.out = nn.Linear(HEADS[0] * DIM, WIDTH, bias=False, dtype=dtype)

    def forward(self, x, bound):
        q, k, v = self.qkv(x).unflatten(1, (-1, DIM)).split((HEADS[0], HEADS[1], HEADS[1]), 1)
        out, _ = bound.calc_attn(q, k, v)
        return x + self.out(out.flatten(1))


def bound_for(group, groups: int = 1):
    heads = HEADS[0] // groups, HEADS[1] // groups
    plan = Plan.from_mask(
        masks.from_cu_seqlens([0, 13, ROWS]), cp_size=group.size(), num_heads_q=heads[0],
        num_heads_kv=heads[1], head_dim=DIM,
    )  # fmt: skip
    return plan.bind(group)


def local_rows(bound, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=generator, device="cpu")
    return bound.dispatch(x.to(torch.get_default_device(), dtype)).requires_grad_()


def run(layers, x, step):
    """Gradients of x and of all weights behind step(layer, x) for each layer."""
    y = x
    for layer in layers:
        y = step(layer, y)
    weights = [weight for layer in layers for weight in layer.parameters()]
    for leaf in (x, *weights):
        leaf.grad = None
    y.square().sum().backward()
    return [y.detach(), *(leaf.grad for leaf in (x, *weights))]


def check_equal(found, wanted, tolerance: float = 1e-12) -> None:
    for f, w in zip(found, wanted, strict=True):
        assert f.shape == w.shape
        assert (f - w).abs().max() <= tolerance * w.abs().max()


def selective(*others):
    return create_selective_checkpoint_contexts([*ATTENTION_OPS, *others])


# Checkpoints by name, and whether they keep attention.
KEEPING = {
    "none": (lambda layer, x, bound: layer(x, bound), True),
    "whole": (lambda layer, x, bound: checkpoint(layer, x, bound, use_reentrant=False), False),
    "kept": (
        lambda layer, x, bound: checkpoint(
            layer, x, bound, use_reentrant=False, context_fn=save_attention
        ),
        True,
    ),
    "with others": (
        lambda layer, x, bound: checkpoint(
            layer, x, bound, use_reentrant=False,
            context_fn=lambda: selective(torch.ops.aten.mm.default),
        ),
        True,
    ),
    "by itself": (
        lambda layer, x, bound: checkpoint(keeping_attention(layer), x, bound, use_reentrant=True),
        True,
    ),
}  # fmt: skip


@over(1, 2)
def test_kept_attention(group):
    """Recomputation runs no kernel and no exchange again, and gradients are the same."""
    bound, layers = bound_for(group), [Layer(0), Layer(1)]
    x = local_rows(bound)
    wanted = run(layers, x, lambda layer, y: layer(y, bound))
    counts = {}
    for name, (step, _) in KEEPING.items():
        with Counts() as counted:
            found = run(layers, x, lambda layer, y, step=step: step(layer, y, bound))
        check_equal(found, wanted)
        counts[name] = counted.found
    for name, (_, is_kept) in KEEPING.items():
        assert counts[name][0] == (2 if is_kept else 4), name
        assert (counts[name][1] == counts["none"][1]) == (is_kept or group.size() == 1), name
    assert group.size() == 1 or counts["none"][1] > 0


def test_kept_attention_on_one_device():
    x = torch.randn(12, 4, 8, dtype=torch.float64, requires_grad=True)
    mask = masks.from_cu_seqlens([0, 5, 12])

    def layer(x):
        return attention(x.sin(), x.cos(), x, mask)

    (wanted,) = torch.autograd.grad(layer(x).square().sum(), x)
    for context_fn in (save_attention, Offload().save_attention):
        with Counts() as counted:
            out = checkpoint(layer, x, use_reentrant=False, context_fn=context_fn)
            (found,) = torch.autograd.grad(out.square().sum(), x)
        assert counted.found[0] == 1
        check_equal([found], [wanted])


def test_changed_results_are_refused():
    x = torch.randn(12, 4, 8, dtype=torch.float64, requires_grad=True)
    mask = masks.from_cu_seqlens([0, 5, 12])

    def changing(y):
        out = attention(y, y, y, mask)
        return out.mul_(2).sin()

    out = checkpoint(changing, x, use_reentrant=False, context_fn=save_attention)
    with pytest.raises(RuntimeError, match=r"shape \[12, 4, 8\].* was changed in place; allowed: "):
        out.sum().backward()


def test_kept_attention_without_recomputation():
    """Inference mode, whose tensors have no versions, through checkpoints that run twice."""
    x = torch.randn(12, 4, 8, dtype=torch.float64)
    mask = masks.from_cu_seqlens([0, 12])

    def layer(y):
        return attention(y, y, y, mask)

    for context_fn in (save_attention, Offload().save_attention):
        with torch.inference_mode():
            found = checkpoint(keeping_attention(layer, context_fn), x, use_reentrant=True)
            assert torch.equal(found, layer(x))


def test_kept_attention_of_a_function_made_before_other_attention():
    mask = masks.from_cu_seqlens([0, 12])

    def layer(y):
        return attention(y.sin(), y, y, mask)

    def kept(y):
        run = keeping_attention(layer)
        return checkpoint(run, layer(y), use_reentrant=True)

    torch.manual_seed(1)
    gradients = []
    start = torch.randn(12, 4, 8, dtype=torch.float64)
    for function, context_fn in ((lambda y: layer(layer(y)), None), (kept, save_attention)):
        x = start.clone().requires_grad_()
        around = {} if context_fn is None else {"context_fn": context_fn}
        checkpoint(function, x, use_reentrant=False, **around).square().sum().backward()
        gradients.append(x.grad)
    check_equal(gradients[1:], gradients[:1])


def test_kept_attention_leaves_operators_alone():
    """No mode of torch sees those of a layer, which takes time for each."""
    x = torch.randn(12, 4, 8, dtype=torch.float64, requires_grad=True)
    modes = []

    def layer(y):
        modes.append(len(_get_current_dispatch_mode_stack()))
        return attention(y, y, y, masks.from_cu_seqlens([0, 12]))  # a mask that nobody else has

    for context_fn in (save_attention, Offload().save_attention):
        checkpoint(layer, x, use_reentrant=False, context_fn=context_fn).sum().backward()
    assert modes == [0] * 4


@over(1, 2)
def test_kept_sparse_attention(group):
    bound = bound_under(window_of(ROWS, 20), group)
    local = [bound.dispatch(leaf.detach()).requires_grad_() for leaf in tensors(ROWS)]
    lists = bound.dispatch(lists_inside(ROWS, 8, 3, 1))

    def attend(*qkv):
        return bound.calc_sparse_attn(*qkv, lists)[0]

    wanted = torch.autograd.grad(attend(*local).square().sum(), local)
    for context_fn in (save_attention, Offload().save_attention):
        with Counts() as counted:
            out = checkpoint(attend, *local, use_reentrant=False, context_fn=context_fn)
            check_equal(torch.autograd.grad(out.square().sum(), local), wanted)
        assert counted.found[0] == 1


@pytest.fixture
def on_the_host(monkeypatch):
    """Tensors in host memory move, too; what moves is counted."""
    monkeypatch.setattr(Offload, "_MOVED", ("cpu",))
    log: list[str] = []
    for name in ("send", "leave", "fetch"):
        function = getattr(_Stored, name)

        def noted(stored, name=name, function=function):
            before = stored._host is None, stored._tensor is None
            function(stored)
            if (stored._host is None, stored._tensor is None) != before:
                log.append(name)

        monkeypatch.setattr(_Stored, name, noted)
    return log


def mlp(seed: int):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).double()


@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_offloaded(on_the_host, has_checkpoints):
    layers = [mlp(seed) for seed in range(5)]
    x = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    host = Offload(min_bytes=0)

    def step(layer, y):
        if not has_checkpoints:
            return layer(y)
        return checkpoint(layer, y, use_reentrant=False, context_fn=host.recompute)

    wanted = run(layers, x, lambda layer, y: layer(y))
    for _ in range(2):  # nothing is left of a step
        del on_the_host[:]
        with host:
            found = run(layers, x, step)
        check_equal(found, wanted)
        assert on_the_host.count("send") > 0
        assert on_the_host.count("fetch") > 0
    if has_checkpoints:  # the inputs of five layers, of which two stay
        assert on_the_host == ["send", "send", "leave", "send", "leave", *on_the_host[5:]]
    gc.collect()
    assert not [one for layer in host._recent for one in layer.alive()]


# Layers on the device behind each layer's first tensor, which brings the layer before it. Of the
# last ones there is no copy, so they stay.
@pytest.mark.parametrize(
    "layers, wanted",
    [
        (2, [[3, 4], [2, 3, 4], [1, 2, 4], [0, 1, 4], [0, 4]]),
        (1, [[4], [3, 4], [2, 4], [1, 4], [0, 4]]),
    ],
)
def test_fetched_one_layer_ahead(on_the_host, layers, wanted):
    host, log, packed = Offload(min_bytes=0, layers=layers), [], []
    with host:
        for number in range(5):
            host.recompute()
            made = (torch.full((3,), float(2 * number + i)) for i in range(2))
            packed.append([host._pack(tensor) for tensor in made])
    for layer in reversed(packed):
        for stored in layer:
            host._unpack(stored)
            host._unpack(stored)  # as retain_graph does
            log.append([number for number, one in enumerate(packed) if one[1]._tensor is not None])
    assert log[::2] == wanted
    assert [[float(host._unpack(one)[0]) for one in layer] for layer in packed] == [
        [2.0 * n, 2.0 * n + 1] for n in range(5)
    ]


def test_what_is_not_moved(on_the_host):
    layer = mlp(0)
    x = torch.randn(6, 8, dtype=torch.float64)
    with Offload(min_bytes=6 * 8 * 8 + 1) as host:
        y = layer(x)
    packed = [one for held in host._recent for one in held.alive()]
    assert [one._tensor.shape for one in packed] == [(6, 16), (6, 16)]  # no weights, no small ones
    y.sum().backward()
    with pytest.raises(ValueError, match=r"^min_bytes is -1; allowed: "):
        Offload(min_bytes=-1)


def test_offloaded_attention(on_the_host):
    """Out and lse move with the layer's input, for several backwards."""
    x = torch.randn(12, 4, 8, dtype=torch.float64, requires_grad=True)
    mask, host = masks.from_cu_seqlens([0, 5, 12]), Offload(min_bytes=0)
    model = nn.Module()
    model.forward = lambda y: [y := checkpoint(
        lambda z: attention(z.sin(), z, z, mask), y, use_reentrant=False,
        context_fn=host.save_attention) for _ in range(4)][-1]  # fmt: skip

    def plain(y):
        for _ in range(4):
            y = attention(y.sin(), y, y, mask)
        return y

    (wanted,) = torch.autograd.grad(plain(x).square().sum(), x)
    assert host.over(model) is model
    with Counts() as counted:
        loss = model(x).square().sum()
        (found,) = torch.autograd.grad(loss, x, retain_graph=True)
        (again,) = torch.autograd.grad(loss, x)
    assert counted.found[0] == 4 and on_the_host.count("fetch") >= 2
    check_equal([found, again], [wanted, wanted])


def parts_of(layer: Layer, groups: int):
    """project and finish of a layer for attend_by_groups."""
    q, k, v = layer.qkv.weight.split([heads * DIM for heads in (HEADS[0], HEADS[1], HEADS[1])])

    def project(x, group):
        return [linear(x, w.chunk(groups)[group]).unflatten(1, (-1, DIM)) for w in (q, k, v)]

    def finish(out, group):
        return linear(out.flatten(1), layer.out.weight.chunk(groups, 1)[group])

    return project, finish


@over(1, 2)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_heads(group, groups):
    check_groups(group, groups)


def check_groups(group, groups: int, dtype=torch.float64, tolerance: float = 1e-12) -> None:
    bound, of_group = bound_for(group), bound_for(group, groups)
    layers, x = [Layer(seed, dtype) for seed in range(2)], local_rows(bound, dtype)
    wanted = run(layers, x, lambda layer, y: layer(y, bound))

    def summed(layer, y):
        project, finish = parts_of(layer, groups)
        return y + attend_by_groups(of_group, y, project, groups, finish=finish)

    def joined(layer, y):
        project, _ = parts_of(layer, groups)
        out = attend_by_groups(of_group, y, project, groups, softmax_scale=DIM**-0.5)
        return y + layer.out(out.flatten(1))

    def in_a_checkpoint(layer, y):
        return checkpoint(summed, layer, y, use_reentrant=False, context_fn=save_attention)

    host = Offload(min_bytes=0)

    def offloaded(layer, y):
        return checkpoint(summed, layer, y, use_reentrant=False, context_fn=host.save_attention)

    for step in (summed, joined, in_a_checkpoint, offloaded):
        with Counts() as counted:
            check_equal(run(layers, x, step), wanted, tolerance)
        assert counted.found[0] == 2 * groups, step


def test_mistakes_of_groups():
    plan = Plan.from_mask(
        masks.from_cu_seqlens([0, 8]), cp_size=1, num_heads_q=2, num_heads_kv=1, head_dim=4
    )
    with pytest.raises(TypeError, match=r"^bound is a Plan; allowed: a bound plan, of the heads"):
        attend_by_groups(plan, torch.zeros(8, 4), lambda x, group: (x, x, x), 2)
    bound = plan.bind()
    with pytest.raises(ValueError, match=r"^num_groups is 0; allowed: "):
        attend_by_groups(bound, torch.zeros(8, 4), lambda x, group: (x, x, x), 0)
    q = torch.zeros(8, 4, 4)
    with pytest.raises(ValueError, match=r"^q.shape is "):
        attend_by_groups(bound, torch.zeros(8, 4), lambda x, group: (q, q[:, :2], q[:, :2]), 2)


@pytest.mark.parametrize("rows, dim", [(1, 0), (4, 0), (100, 0), (4, 1)])
def test_over_rows(rows, dim):
    layer = mlp(0)
    x = torch.randn((3, 10, 8) if dim else (10, 8), dtype=torch.float64, requires_grad=True)
    most = []

    def noted(y):
        most.append(y.shape[dim])
        return layer(y)

    wanted = run([layer], x, lambda layer, y: layer(y))
    check_equal(run([layer], x, lambda _, y: over_rows(noted, y, rows=rows, dim=dim)), wanted)
    assert max(most) == min(rows, 10)
    with pytest.raises(ValueError, match=r"^tensors have 10 and 8 rows in axis "):
        over_rows(lambda x, y: x + y, x, x.transpose(-1, -2), rows=2, dim=-2)


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(rows=0), "rows is 0; allowed: 1 or more"),
        (dict(rows=2.5), "rows is 2.5; allowed: an int"),
        (dict(rows=2, dim=2), "dim is 2; allowed: -1 to 0"),
        (dict(rows=2, group=3), "group is a int; allowed: a process group, None"),
        (dict(rows=2, tensors=()), "tensors are none; allowed: one or more"),
        (dict(rows=2, tensors=([1, 2],)), r"tensors\[0\] is a list; allowed: a tensor"),
        (dict(rows=2, tensors=(torch.zeros(()),)), r"tensors\[0\] has no axis; allowed: one"),
    ],
)  # fmt: skip
def test_mistakes_of_chunks(given, message):
    tensors = given.pop("tensors", (torch.zeros(4, 3), torch.zeros(4)))
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        over_rows(torch.add, *tensors, **given)


@over(3)
def test_chunks_of_ranks(group):
    """Ranks of 0, 3 and 9 rows call a function that is collective equally often."""
    size = (0, 3, 9)[dist.get_rank(group)]
    head = nn.Linear(4, 7, dtype=torch.float64)
    hidden = torch.randn(size, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(7, (size,))
    calls = []

    def collective(x):
        calls.append(len(x))
        dist.all_reduce(torch.zeros(1), group=group)
        return head(x)

    wanted = run([head], hidden, lambda head, x: cross_entropy(head(x), labels, reduction="sum"))
    found = run(
        [head], hidden, lambda _, x: loss_over_rows(collective, x, labels, rows=4, group=group)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert len(calls) == 6 and max(calls) <= 4


def test_loss_over_rows():
    head = nn.Linear(8, 50, dtype=torch.float64)
    hidden = torch.randn(21, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(50, (21,))
    labels[::4] = -100
    wanted = run([head], hidden, lambda head, h: cross_entropy(head(h), labels, reduction="sum"))
    found = run([head], hidden, lambda head, h: loss_over_rows(head, h, labels, rows=4))
    check_equal(found, wanted)
    half = head.bfloat16()
    loss = loss_over_rows(half, hidden.detach().bfloat16(), labels)
    assert loss.dtype == torch.float32
    for head, given, message in [
        (half, dict(ignore_index=None), "ignore_index is None; allowed: an int"),
        (None, {}, "head is a NoneType; allowed: a function"),
        (half, dict(hidden=hidden[None]), "tensors have 1 and 21 rows in axis 0; allowed"),
        (nn.Identity(), dict(hidden=hidden[None], labels=labels[None]), r"head gives shape \[1, "),
        (half, dict(labels=[0] * 21), r"tensors\[1\] is a list; allowed: a tensor"),
    ]:  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            loss_over_rows(head, **{"hidden": hidden, "labels": labels} | given)


def test_offload_refuses_what_was_changed_in_place(monkeypatch):
    monkeypatch.setattr(Offload, "_MOVED", ("cpu",))
    host, x = Offload(min_bytes=0), torch.ones(4, requires_grad=True)
    with host:
        y = x * 2
        out = y.sin()
        y.mul_(3)
        with pytest.raises(RuntimeError, match="changed in place"):
            out + y.cos()
