# SPDX-License-Identifier: Apache-2.0
"""Sparse attention over GPUs: keys and blocks that are chosen on the device, inside of a plan."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest
import torch

import dense
import pipeline_cases as cases
from magi_attention import masks
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.plan import Plan
from on_gpu import NEEDS_GPU, capture, no_waits
from sparse_masks import counts_of_blocks, counts_of_lists
from test_sparse_ranks import as_lists, local_blocks

pytestmark = NEEDS_GPU
GPUS = torch.cuda.device_count()
ROWS, HEADS, DIM, CHUNK = 1010, (8, 2), 64, 64
ALLOWED = 0.02  # of bfloat16, relative to the norms
TRANSPORTS = ["nvlink", "nccl"]
SEVERAL = pytest.mark.skipif(GPUS < 2, reason="one GPU alone")
DETERMINISTIC = {"MAGI_ATTENTION_DETERMINISTIC_MODE": "1"}
# Queries and keys of a block, None: lists of single queries. Blocks of 96 keys do not lie in the
# plan's chunks, those of 48 queries are for ranges. Keys of latents hold their values.
FORMS = {
    "keys": (None, 1),
    "latents": (None, 1),
    "key blocks": (None, 16),
    "masks": (64, 64),
    "lists": (32, 64),
    "moved": (64, 96),
    "ranges": (4, 20),
    "causal": (64, 64),
}


def bound_under(group, transport: str, form: str = "keys", mask=None):
    (heads_q, heads_kv), dims = (HEADS, (DIM, DIM)) if form != "latents" else ((8, 1), (576, 512))
    plan = Plan.from_mask(
        mask or masks.from_cu_seqlens([0, ROWS]), cp_size=group.size(), num_heads_q=heads_q,
        num_heads_kv=heads_kv, head_dim=dims[0], head_dim_v=dims[1],
        config=DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=CHUNK)),
    )  # fmt: skip
    return plan.bind(group, transport=transport if group.size() > 1 else None)


def chosen(bound, form: str, seed: int = 0):
    """What calc_sparse_attn takes on this rank, and how often each pair is seen."""
    q_size, k_size = FORMS[form]
    heads_kv = bound.plan.report.num_heads_kv
    generator = torch.Generator("cpu").manual_seed(seed)
    first = torch.arange(0, ROWS, q_size or 1, device="cpu").view(-1, 1, 1)
    num_blocks, group = -(-ROWS // k_size), HEADS[0] // heads_kv
    if q_size is None:
        shape = ROWS, heads_kv, 40
        lists = torch.randint(num_blocks, shape, generator=generator, device="cpu").int()
        lists = lists.masked_fill((lists + 1) * k_size > first + 1, -1)  # some are empty
        counts = counts_of_lists(lists.cpu(), group, ROWS, (1, k_size), ROWS)
        local = bound.dispatch(lists.cuda(), pad_value=-1)
        return {"index_sparse_indices": local, "sparse_k_block_size": k_size}, counts
    shape = heads_kv, first.shape[0], num_blocks
    ends = (torch.arange(num_blocks, device="cpu") + 1) * k_size
    visible = torch.rand(shape, generator=generator, device="cpu") < 0.5
    visible &= ends.clamp(max=ROWS) <= first.view(1, -1, 1)
    if form == "causal":
        visible |= torch.eye(first.shape[0], device="cpu").bool()
    counts = counts_of_blocks(visible, group, (q_size, k_size), ROWS, ROWS)
    if form == "causal":
        counts = counts.tril()
    local = local_blocks(bound, visible.cuda(), q_size)
    sizes = {"sparse_k_block_size": k_size, "q_block_size": q_size}
    if form == "lists":
        return {"index_sparse_indices": as_lists(local)} | sizes, counts
    return {"block_mask": local, "is_causal": form == "causal"} | sizes, counts


def inputs(bound, seed: int = 1) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """q, k, v and the gradient of out of all rows, and local leaves of the first three; latents
    without v.
    """
    generator, of = torch.Generator("cuda").manual_seed(seed), bound.plan.report
    kv = [(of.num_heads_kv, of.head_dim), (of.num_heads_kv, of.head_dim_v)]
    shapes = [(of.num_heads_q, of.head_dim), *kv[: 1 + (of.head_dim == DIM)]]
    made = [
        torch.randn(ROWS, *shape, generator=generator, device="cuda").bfloat16()
        for shape in (*shapes, (of.num_heads_q, of.head_dim_v))
    ]
    *local, upstream = (bound.dispatch(x).detach() for x in made)
    return made, [x.requires_grad_() for x in local], upstream


def with_values(leaves) -> tuple[torch.Tensor, ...]:
    """q, k and v."""
    return tuple(leaves) if len(leaves) == 3 else (*leaves, leaves[1][..., :512])


def step(bound, leaves, upstream, given) -> list[torch.Tensor]:
    """out, lse, the error word, and gradients, of this rank."""
    out, meta = bound.calc_sparse_attn(*with_values(leaves), **given)
    gradients = torch.autograd.grad(out, leaves, upstream)
    return [out.detach(), meta.lse.detach(), meta.error_word, *gradients]


def as_functions(given: dict) -> dict:
    """Functions in the place of tensors, which calls ask while keys come."""
    return {
        name: (lambda x=x: x) if isinstance(x, torch.Tensor) else x for name, x in given.items()
    }


def agree(group, transport: str, form: str) -> None:
    """With float64, given as tensors, and by a function that computes while keys come."""
    bound = bound_under(group, transport, form)
    whole, leaves, upstream = inputs(bound)
    given, counts = chosen(bound, form)
    exact = [x.double().cpu().requires_grad_() for x in whole[:-1]]
    wanted, lse, _ = dense.attention(*with_values(exact), counts.cpu())
    gradients = torch.autograd.grad(wanted, exact, whole[-1].double().cpu())
    wanted = [wanted.detach(), lse.detach(), *gradients]
    for each in (given, as_functions(given)):
        out, lse, word, *gradients = step(bound, leaves, upstream, each)
        assert word.tolist() == [0, -1]
        found = [bound.undispatch(x).double().cpu() for x in (out, lse, *gradients)]
        for name, f, w in zip(("out", "lse", "dq", "dk", "dv"), found, wanted):
            assert torch.equal(f.isinf(), w.isinf()), name
            finite = w.isfinite()
            error = ((f - w)[finite].norm() / w[finite].norm()).item()
            assert error < ALLOWED, f"{name} is off by {error:.3g}"


def repeat(group, transport: str, form: str) -> None:
    bound = bound_under(group, transport, form)
    _, leaves, upstream = inputs(bound)
    given, _ = chosen(bound, form)
    wanted = step(bound, leaves, upstream, given)
    for _ in range(3):
        assert all(map(torch.equal, step(bound, leaves, upstream, given), wanted))


def wait_for_nothing(group, transport: str, form: str) -> None:
    bound = bound_under(group, transport, form)
    _, leaves, upstream = inputs(bound)
    cases = [chosen(bound, form, seed)[0] for seed in range(3)]
    wanted = [step(bound, leaves, upstream, given) for given in cases]
    late = as_functions(cases[0])
    step(bound, leaves, upstream, late)
    torch.cuda.synchronize()
    with no_waits():
        found = [step(bound, leaves, upstream, given) for given in (*cases, late)]
    for f, w in zip(found, (*wanted, wanted[0])):
        assert torch.equal(f[0], w[0]) and torch.equal(f[1], w[1]) and torch.equal(f[2], w[2])


def captured(group, transport: str, form: str) -> None:
    """A graph of forward and backward follows what is chosen when it is replayed."""
    bound = bound_under(group, transport, form)
    _, leaves, upstream = inputs(bound)
    given, _ = chosen(bound, form)
    (entries,) = (x for x in given.values() if isinstance(x, torch.Tensor))
    graph, found = capture(partial(step, bound, leaves, upstream, given), group)
    for seed in range(3):
        (other,) = (x for x in chosen(bound, form, seed)[0].values() if isinstance(x, torch.Tensor))
        entries.copy_(other)
        wanted = step(bound, leaves, upstream, given)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, wanted))
    del graph


def tell(group, transport: str) -> None:
    """NaN where keys that did not come are named, and nowhere else; entries outside count as none;
    what nobody chose may hold NaN.
    """
    bound = bound_under(group, transport, mask=masks.from_window(ROWS, 40, 0))
    _, (q, k, v), _ = inputs(bound)
    own = bound.rows.position_ids_on(q.device)
    lists = own.int().view(-1, 1, 1).repeat(1, HEADS[1], 3)
    lists[:, :, 1] = -1
    lists[own % 2 == 1] = -1
    k.data[own % 2 == 1], v.data[own % 2 == 1] = float("nan"), float("nan")
    wanted, _ = bound.calc_sparse_attn(q, k, v, lists)
    assert wanted.isfinite().all()
    found = bound.needed_keys.blocks(bound.local_rows, 1, q.device)
    absent = (found.places[2:-1] == -3).nonzero().flatten()
    assert len(absent) > 0
    lists[2, 1, 1], lists[3, 0, 1], lists[5, 1, 1] = ROWS, -9, absent[0]
    with no_waits():
        out, meta = bound.calc_sparse_attn(q, k, v, lists)
        loss = out.nan_to_num().float().sum()
        dq, dk, dv = torch.autograd.grad(loss, (q, k, v))
    assert meta.error_word.tolist() == [3, (2 * 2 + 1) * 3 + 1]
    assert out[5, 4:].isnan().all() and meta.lse[5, 4:].isnan().all()
    out = out.detach().clone()
    out[5, 4:] = wanted[5, 4:]
    assert torch.equal(out, wanted)
    assert all(x.isfinite().all() for x in (dq, dk[own % 2 == 0], dv[own % 2 == 0]))


def models(group) -> None:
    """Models with indexers: in float64 by torch's operators, beside one process; in bfloat16 by
    lists, of latents where heads are wide.
    """
    import model_zoo as zoo
    import test_model_indexed as indexed

    def on_gpu(function, *given):
        with torch.device("cpu"):
            made = function(*given)
        return tuple(x.cuda() for x in made) if isinstance(made, tuple) else made.cuda()

    indexed.ours.register()
    of_gpu = {"make": partial(on_gpu, zoo.make), "batch": partial(on_gpu, zoo.batch)}
    with mock.patch.multiple(zoo, **of_gpu):
        for name in indexed.MODELS:
            sizes = {"index_n_heads": 2, "index_topk": 4}
            error = indexed.worst_error(group, name, zoo.DOCUMENTS, **sizes)
            assert error < 1e-5, f"{name}: {error}"
        for name, sizes in (("axk2", {}), ("deepseek_v32", indexed.RELEASED)):
            with zoo.by("expanded", takes_latents=len(sizes) > 0):
                error = indexed.error_in_bfloat16(group, name, **sizes)
            assert error < indexed.ALLOWED, f"{name}: {error}"


def test_one_rank(gpu_ranks):
    for form in FORMS:
        gpu_ranks.run(1, agree, "nvlink", form)


FEW = ["keys", "latents", "masks", "moved"]
CHECKS = {agree: FORMS, repeat: FEW, wait_for_nothing: FORMS.keys() - {"ranges"}, captured: FEW}


@SEVERAL
@pytest.mark.parametrize("check, form", [(f, form) for f in CHECKS for form in sorted(CHECKS[f])])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_forms(gpu_ranks, transport, check, form):
    variables = DETERMINISTIC if check in (repeat, captured) else {}
    gpu_ranks.run(2, cases.environment, variables, check, transport, form)


@SEVERAL
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_error_word(gpu_ranks, transport):
    gpu_ranks.run(2, tell, transport)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=SEVERAL)])
def test_models_whose_indexers_choose(gpu_ranks, size):
    pytest.importorskip("transformers", minversion="5.24")
    gpu_ranks.run(size, models)
