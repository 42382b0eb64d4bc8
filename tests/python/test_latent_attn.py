# SPDX-License-Identifier: Apache-2.0
"""Attention to latents over ranks, against one process in float64, with all gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import dense
from magi_attention import masks, training
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.plan import Plan
from ranks import over, refuses

ROWS, HEADS, LATENT, ROPE, NOPE, VALUE = 150, (6, 3), 20, 4, 8, 6
MASKS = {
    "causal": lambda: masks.from_cu_seqlens([0, ROWS]),
    "window": lambda: masks.from_window(ROWS, 30, 4),
    "packed": lambda: masks.from_cu_seqlens([0, 20, 21, 90, ROWS]),
    "tree": lambda: masks.from_tree([-1, 0, 0, 1, 1], [30, 40, 20, 35, 25]),
}


def leaves(dtype=torch.float64) -> list[torch.Tensor]:
    """q, latent, k_rope of the whole sequence, and the weight."""
    generator = torch.Generator().manual_seed(3)
    shapes = (
        (ROWS, HEADS[0], NOPE + ROPE), (ROWS, LATENT), (ROWS, ROPE),
        (HEADS[1] * (NOPE + VALUE), LATENT),
    )  # fmt: skip
    made = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [x.to(dtype).requires_grad_() for x in made]


def bound_of(group, mask: str, **options):
    options.setdefault("head_dim_v", VALUE)
    plan = Plan.from_mask(
        MASKS[mask](), cp_size=group.size(), num_heads_q=HEADS[0], num_heads_kv=HEADS[1],
        head_dim=NOPE + ROPE, **options,
    )  # fmt: skip
    return plan.bind(group)


def reference(mask: str, upstream: torch.Tensor):
    """out, lse and the gradients of one process."""
    exact = leaves()
    q, latent, rope, weight = exact
    both = (latent @ weight.T).view(ROWS, HEADS[1], NOPE + VALUE)
    k = torch.cat((both[..., :NOPE], rope.unsqueeze(1).expand(-1, HEADS[1], -1)), 2)
    visible = masks.to_matrix(MASKS[mask]()).double()
    out, lse, _ = dense.attention(q, k, both[..., NOPE:], visible)
    return out, lse, torch.autograd.grad((out * upstream).sum() + lse.sum(), exact)


def check(bound, group, mask: str, call, tolerance: float = 1e-9) -> None:
    """call(q, latent, rope, weight) -> out, meta, of this rank's rows."""
    given = leaves()
    upstream = torch.randn(ROWS, HEADS[0], VALUE, generator=torch.Generator().manual_seed(4))
    upstream = upstream.double()
    local = [bound.dispatch(x).detach().requires_grad_() for x in given[:3]]
    valid = bound.rows.num_valid
    out, meta = call(*local, given[3])
    (out * bound.dispatch(upstream)).sum().backward(retain_graph=True)
    meta.lse[:valid].sum().backward()
    weight = given[3].grad
    dist.all_reduce(weight, group=group)
    found = [bound.undispatch(x) for x in (out.detach(), meta.lse.detach())]
    found += [bound.undispatch(x.grad) for x in local] + [weight]
    wanted_out, wanted_lse, gradients = reference(mask, upstream)
    names = ("out", "lse", "dq", "dlatent", "drope", "dweight")
    for name, f, w in zip(names, found, (wanted_out, wanted_lse, *gradients)):
        error = (f - w.detach()).abs().max().item()
        assert error < tolerance, f"{name} is off by {error}"


@over(1, 2, 3, 4)
@pytest.mark.parametrize("mask", MASKS)
def test_against_one_process(group, mask: str):
    """Layouts that differ by mask and size, and groups of heads."""
    sizes = list(MASKS).index(mask) + group.size()
    chunks = DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=16))
    contiguous = DistAttnConfig(dispatch_config=DispatchConfig(layout="contiguous"))
    layouts = ({"config": chunks}, {"config": contiguous}, {"placement": "zigzag", "overlap": 2})
    bound, heads = bound_of(group, mask, **layouts[sizes % 3]), (None, 2, 1)[sizes % 3]
    check(
        bound,
        group,
        mask,
        lambda *x: bound.calc_latent_attn(*x, mode="latent", heads_at_once=heads),
    )


@over(1, 2)
def test_expanded_is_the_same(group):
    """Keys and values travel, under plans of v's own dim and of one dim for all."""
    for dim in (VALUE, None):
        bound = bound_of(group, "packed", head_dim_v=dim)
        check(bound, group, "packed", lambda *x: bound.calc_latent_attn(*x, mode="expanded"))
    q, latent, rope, weight = [bound.dispatch(x) for x in leaves(torch.float32)[:3]] + leaves()[3:]
    given = q, latent, rope, weight.float()
    with torch.no_grad():  # joins words of 8 bytes, but not of columns apart or negated lazily
        wanted = bound.calc_latent_attn(*given, mode="expanded")[0]
        for other in (rope.repeat_interleave(2, 1)[:, ::2], torch._neg_view(-rope)):
            given = q, latent, other, weight.float()
            assert torch.equal(bound.calc_latent_attn(*given, mode="expanded")[0], wanted)


@over(2)
def test_a_checkpoint_attends_once(group):
    """Latents come again where a checkpoint keeps attention, whose kernels do not run again; bits
    repeat.
    """
    bound = bound_of(group, "causal")
    local = [bound.dispatch(x).detach().requires_grad_() for x in leaves(torch.float32)[:3]]
    weight = leaves(torch.float32)[3]
    calls, forward = [], bound.latents.forward
    bound.latents.forward = lambda *given: calls.append(1) or forward(*given)

    def attend(*tensors):
        return bound.calc_latent_attn(*tensors, mode="latent")[0]

    def gradients(out):
        return torch.autograd.grad(out.square().sum(), [*local, weight])

    wanted = gradients(attend(*local, weight))
    options = dict(use_reentrant=False, context_fn=training.save_attention)
    calls.clear()
    found = gradients(checkpoint(attend, *local, weight, **options))
    assert len(calls) == 1
    for f, w in zip(found, wanted):
        assert torch.equal(f, w)


@over(2)
def test_what_does_not_fit(group):
    bound = bound_of(group, "causal")
    q, latent, rope, weight = [bound.dispatch(x.detach()) for x in leaves()[:3]] + leaves()[3:]
    for given, pattern in (
        ((q[:-1], latent, rope, weight), "q has 79 rows"),
        ((q, latent[1:], rope, weight), "latent.shape"),
        ((q, latent, rope, weight[1:]), "up_projection has shape"),
        ((q, latent, rope, weight[:, 1:]), "up_projection has shape"),
        ((q, latent, rope[:, 0], weight), "k_rope has shape"),
    ):
        refuses(lambda: bound.calc_latent_attn(*given), ValueError, pattern)
    refuses(lambda: bound.calc_latent_attn(q, latent.float(), rope, weight), TypeError, "latent is")
    refuses(
        lambda: bound.calc_latent_attn(q, latent, rope, weight, mode="both"), ValueError, "mode is"
    )


@over(2)
def test_autocast_changes_nothing(group):
    """Projections are of the type of q, and so are their gradients inside of autocast, where torch
    projects these by itself with "expanded".
    """
    bound = bound_of(group, "causal")
    for mode in ("latent", "expanded"):
        found = []
        for is_on in (False, True):
            given = leaves(torch.float32)
            local = [bound.dispatch(x).detach().requires_grad_() for x in given[:3]]
            with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
                out, _ = bound.calc_latent_attn(*local, given[3], mode=mode)
            with torch.autocast("cpu", torch.bfloat16, enabled=is_on and mode == "latent"):
                out.sum().backward()
            found.append([out.detach(), *(x.grad for x in (*local, given[3]))])
        for x, y in zip(*found, strict=True):
            assert (x - y).abs().max() <= 1e-5 * x.abs().max(), mode


def mla(cp_size: int, rows: int = 1 << 16, bounds=None, **options) -> Plan:
    """A plan of DeepSeek's heads."""
    mask = masks.from_cu_seqlens([0, rows] if bounds is None else bounds)
    sizes = {"num_heads_q": 128, "num_heads_kv": 128, "head_dim": 192, "head_dim_v": 128}
    return Plan.from_mask(mask, cp_size=cp_size, **sizes | options)


def test_bytes_of_latents():
    """64k causal rows on two ranks: 576 elements in place of 40,960."""
    price = mla(2).price_latents(512, 64)
    rows = 3 * (1 << 14)  # the first and the last quarter see all, those between them three
    assert price.latent_bytes == rows * 576 * (2 + 4)
    assert price.expanded_bytes == rows * 128 * 320 * (2 + 2 + 4)
    assert price.latent_bytes <= 0.03 * price.expanded_bytes


@over(2)
@pytest.mark.parametrize("mode", ["latent", "expanded"])
def test_bytes_that_move(group, mode: str):
    """What ranks send is what the price says."""
    bound = bound_of(group, "causal", placement="zigzag")
    local = [bound.dispatch(x).detach().requires_grad_() for x in leaves(torch.bfloat16)[:3]]
    before = sum(bound.communicator.counters()["bytes_to_peer"])
    out, _ = bound.calc_latent_attn(*local, leaves(torch.bfloat16)[3], mode=mode)
    out.sum().backward()
    sent = torch.tensor(sum(bound.communicator.counters()["bytes_to_peer"]) - before)
    dist.all_reduce(sent, group=group)
    assert sent == getattr(bound.plan.price_latents(LATENT, ROPE), f"{mode}_bytes")


def test_what_is_faster():
    """Where nothing travels latents save nothing; where keys and values take long they win."""
    assert mla(1).price_latents(512, 64).mode == "expanded"
    for cp_size, rows, bounds in ((1, 256, None), (2, 256, [0, 128, 256]), (1, 32, None)):
        for heads in (4, 128):
            alone = mla(cp_size, rows, bounds, num_heads_q=heads, num_heads_kv=heads)
            price = alone.price_latents(512, 64)
            assert (price.mode, price.expanded_bytes) == ("expanded", 0)
    near, far = (mla(8, 1 << 14, devices_per_node=size).price_latents(512, 64) for size in (0, 2))
    assert far.latent_bytes == near.latent_bytes and near.mode == "expanded"
    assert far.expanded_seconds > near.expanded_seconds and far.latent_seconds > near.latent_seconds
    bounds = [*range(0, 1 << 18, 24576), 1 << 18]
    price = mla(16, 1 << 18, bounds, devices_per_node=1).price_latents(512, 64)
    assert price.mode == "latent" and price.latent_seconds < 0.9 * price.expanded_seconds
    assert "chosen" in str(price).splitlines()[0]
