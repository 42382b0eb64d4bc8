# SPDX-License-Identifier: Apache-2.0
"""Every tensor argument of public functions in other layouts than row-major ones without gaps."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import dense
from magi_attention import api, functional, masks
from magi_attention.comm.functional import all_gather_fwd_scatter_bwd, scatter_fwd_all_gather_bwd
from magi_attention.comm.primitive.grpcoll import group_cast, group_reduce
from magi_attention.functional import utils
from magi_attention.utils import sparse_utils
from magi_attn_extensions.dsa_interface import dsa_attn_func
from magi_attn_extensions.fa2_interface_with_sink import (
    fa2_func_with_sink,
    fa2_varlen_func_with_sink,
)
from pipeline_cases import Case, make_key

ROWS, HEADS, DIM, BLOCK = 40, (4, 2), 16, 8
NUM = ROWS // BLOCK
LEAVES = ("q", "k", "v", "sink", "x")  # arguments that have gradients


def permuted(t: torch.Tensor) -> torch.Tensor:
    """Strides in the reverse order."""
    return t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))


def turned(t: torch.Tensor) -> torch.Tensor:
    """The first axis innermost but one: all that attention takes of q, k and v."""
    return t.transpose(0, -2).contiguous().transpose(0, -2) if t.dim() > 2 else permuted(t)


def sliced(t: torch.Tensor) -> torch.Tensor:
    """Gaps behind every axis but the last, whose steps are 1."""
    wide = t.new_ones([2 * size + 1 for size in t.shape[:-1]] + [t.shape[-1] + 8])
    part = wide[tuple(slice(1, 2 * size + 1, 2) for size in t.shape[:-1])][..., : t.shape[-1]]
    return part.copy_(t)


def strided(t: torch.Tensor) -> torch.Tensor:
    """Every second entry of the last axis."""
    return t.new_ones(*t.shape[:-1], 2 * t.shape[-1] + 1)[..., 1::2].copy_(t)


def shifted(t: torch.Tensor) -> torch.Tensor:
    """Without gaps, behind the begin of its storage."""
    return t.new_ones(t.numel() + 8)[8:].view(t.shape).copy_(t)


def expanded(t: torch.Tensor) -> torch.Tensor:
    """Its first row, for all rows."""
    return t[:1].expand(t.shape)


def negated(t: torch.Tensor) -> torch.Tensor:
    """Of memory that holds the negative values."""
    return t if t.dtype == torch.bool else torch._neg_view(-t)


LAYOUTS = (permuted, turned, sliced, strided, shifted, expanded, negated)
Table = dict[str, tuple[Callable, dict[str, torch.Tensor]]]


def check(call: Callable, given: dict[str, torch.Tensor], is_exact: bool = True) -> None:
    """call(**given) with each argument in each layout. is_exact: results repeat bit by bit."""
    for name, tensor in given.items():
        for layout in LAYOUTS:
            view, plain = (
                layout(tensor),
                layout(tensor).clone(memory_format=torch.contiguous_format),
            )
            found, wanted = (_results(call, {**given, name: t}) for t in (view, plain))
            if isinstance(found, str):
                is_same = found == wanted or found.startswith(
                    (f"{name}.stride[", f"{name} has stride")
                )
            else:
                is_same = isinstance(wanted, list) and len(found) == len(wanted)
                equal = torch.equal if is_exact else _is_close
                is_same = is_same and all(equal(f, w) for f, w in zip(found, wanted))
            assert is_same, f"{name} {layout.__name__}: {found} is not {wanted}"


def _is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


def _results(call: Callable, given: dict[str, torch.Tensor]) -> list[torch.Tensor] | str:
    """What a call gives, and the gradients of its leaves, whose upstream is a view itself; the
    words in which it refuses.
    """
    names = [n for n in LEAVES if n in given and given[n].is_floating_point()]
    leaves = [given[n].detach().requires_grad_() for n in names]
    try:
        results = flat(call(**{**given, **dict(zip(names, leaves))}))
    except ValueError as error:
        return str(error)
    roots = [r for r in results if r.requires_grad]
    upstream = [permuted(torch.ones_like(r) * (r.detach() > 0)) for r in roots]
    found = torch.autograd.grad(roots, leaves, upstream, allow_unused=True) if roots else ()
    return [r.detach() for r in results] + [g for g in found if g is not None]


def flat(result) -> list[torch.Tensor]:
    """The tensors of a result."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, masks.Mask):
        return [result.slices]
    if hasattr(result, "lse"):
        return [result.lse]
    if hasattr(result, "to_naive_ranges"):
        return [torch.tensor(result.to_naive_ranges())]
    if isinstance(result, (tuple, list)):
        return [part for item in result for part in flat(item)]
    return []


def lists(function: Callable, **options) -> Callable:
    return lambda **given: function(**given, deterministic=True, **options)


def attention(device: str, dtype: torch.dtype, place: str) -> Table:
    """Functions of attention on one device; place: the device of ranges."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype)

    def ints(high, *shape):
        return torch.randint(-1, high, shape, generator=generator, dtype=torch.int32).to(device)

    q, k, v = random(ROWS, HEADS[0], DIM), random(ROWS, HEADS[1], DIM), random(ROWS, HEADS[1], DIM)
    qkv, wide = {"q": q, "k": k, "v": v}, torch.promote_types(dtype, torch.float32)
    mask = dense.masks(ROWS)["varlen_causal"]
    parts = mask.q_ranges, mask.k_ranges, mask.types
    names = "q_ranges", "k_ranges", "attn_type_map"
    ranges = {n: torch.tensor(p, dtype=torch.int32, device=place) for n, p in zip(names, parts)}
    visible = torch.rand(HEADS[1], NUM, NUM, generator=generator).to(device) < 0.5
    sizes = {"q_block_size": BLOCK, "k_block_size": BLOCK}
    flex, blocks = functional.flex_flash_attn_func, functional.block_sparse_attn_func

    def of_sink(sink, layout):
        def call(**given):
            return flex(**given, sink_layout=layout, deterministic=True)

        return call, {**qkv, **ranges, "sink": sink.to(wide)}

    table = {
        "sink of all rows": of_sink(random(2, HEADS[0]), "sh"),
        "sink of each row": of_sink(random(ROWS, 2, HEADS[0]), "ssh"),
        "keys": (lists(flex), {**qkv, "index_sparse_indices": ints(ROWS, ROWS, HEADS[1], 5)}),
        "blocks of flex": (
            lists(flex, q_block_size=BLOCK, sparse_k_block_size=BLOCK),
            {**qkv, "index_sparse_indices": ints(NUM, NUM, HEADS[1], 3)},
        ),
        "lists of dsa": (
            lists(dsa_attn_func), {**qkv, "index_sparse_indices": ints(ROWS, ROWS, HEADS[1], 5)},
        ),
        "map of dsa": (
            lists(dsa_attn_func), {**qkv, "index_map": ints(ROWS, HEADS[1], ROWS, 5)},
        ),
        "fa2": (
            fa2_func_with_sink,
            {n: t.unflatten(0, (2, -1)) for n, t in qkv.items()},
        ),
        "varlen fa2": (
            lambda **given: fa2_varlen_func_with_sink(
                **given, max_seqlen_q=ROWS, max_seqlen_k=ROWS
            ),
            {**qkv, **{f"cu_seqlens_{side}": torch.tensor([0, 11, ROWS]) for side in "qk"}},
        ),
    }  # fmt: skip
    for is_fast in (False, True):

        def call(*, is_fast=is_fast, **given):
            return blocks(**given, **sizes, deterministic=not is_fast)

        table[f"blocks {is_fast}"] = call, {**qkv, "block_mask": visible}
        table[f"block lists {is_fast}"] = call, {**qkv, "block_lists": ints(NUM, NUM, HEADS[1], 3)}
    return table


def builders() -> Table:
    """Masks in host memory."""
    generator = torch.Generator().manual_seed(0)
    bounds, ids = torch.tensor([0, 5, 9, 9, 20]), torch.tensor([1, 1, 0, 0, 2, 2, 1, 1])
    visible = torch.rand(6, 7, generator=generator) < 0.5

    def padded(**given):
        return masks.from_packed_seq_params(SimpleNamespace(**given))

    named = [f"cu_seqlens_{s}{p}" for s in ("q", "kv") for p in ("", "_padded")]
    return {
        "cu_seqlens": (masks.from_cu_seqlens, {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}),
        "ids": (masks.from_document_ids, {"document_ids": ids}),
        "prefixes": (
            masks.from_prefix_lm,
            {"cu_seqlens": bounds, "prefix_lengths": torch.tensor([2, 0, 0, 5])},
        ),
        "packed": (padded, dict.fromkeys(named, bounds)),
        "matrix": (masks.from_matrix, {"visible": visible}),
        "blocks": (
            lambda visible: masks.from_blocks(visible, 2, 3, 12, 20), {"visible": visible},
        ),
        "ends": (
            lambda ends: masks.from_interval_ends(ends, 9), {"ends": ids.view(1, -1).repeat(3, 1)},
        ),
        "flashmask": (
            lambda startend_row_indices: masks.from_flashmask(startend_row_indices, causal=False),
            {"startend_row_indices": ids.view(-1, 1).repeat(1, 4)},
        ),
        "intervals": (
            lambda offsets, intervals: masks.from_intervals(offsets, intervals, 9),
            {"offsets": torch.tensor([0, 1, 3]), "intervals": torch.tensor([[0, 2]] * 3)},
        ),
        "tree": (
            masks.from_tree,
            {"parents": torch.tensor([-1, 0, 0]), "lengths": torch.tensor([4, 2, 3])},
        ),
        "inferred": (
            api.infer_attn_mask_from_cu_seqlens, {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds},
        ),
    }  # fmt: skip


def block_tables() -> Table:
    """Ranges of blocks and lists of blocks, and partial results."""
    generator = torch.Generator().manual_seed(0)
    visible = torch.rand(6, 7, generator=generator) < 0.5
    lists = torch.randint(-1, NUM, (HEADS[1], NUM, 3), generator=generator, dtype=torch.int32)
    blocks = torch.rand(1, HEADS[1], NUM, NUM, generator=generator) < 0.5
    rows = torch.full((HEADS[1], NUM), BLOCK)
    parts = torch.rand(2, 6, 4, 3, generator=generator)
    state = dict(zip(("out1", "out2"), parts)) | dict(zip(("lse1", "lse2"), parts[..., 0]))
    return {
        "topk": (
            lambda lists: sparse_utils.generate_ranges_from_topk_indices(lists, 8, 8, NUM),
            {"lists": lists},
        ),
        "flattened": (sparse_utils.flatten_block_mask_to_kv_shape, {"mask_kv_4d": blocks}),
        "ranges": (
            lambda mask: sparse_utils.generate_ranges_from_block_mask(mask, 8, 8),
            {"mask": visible},
        ),
        "ranges as triton": (
            lambda mask: sparse_utils.generate_ranges_from_block_mask_triton(mask, 8, 8),
            {"mask": blocks},
        ),
        "sizes": (
            lambda mask, rows, cols: sparse_utils.generate_ranges_from_var_block_mask(
                mask, rows, cols, HEADS[1], HEADS[1]
            ),
            {"mask": blocks[0, 0].repeat(2, 2), "rows": rows, "cols": rows},
        ),
        "partial results": (utils.correct_attn_out_lse, state),
    }  # fmt: skip


def over_ranks(group, dtype: torch.dtype = torch.float64, is_exact: bool = True) -> None:
    """What needs a plan or a group, on torch's default device."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    key = make_key(dense.masks(ROWS)["varlen_causal"], Case(heads=HEADS, head_dim=DIM), group)
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    whole = [torch.randn(ROWS, n, DIM, generator=generator, dtype=dtype) for n in (4, 2, 2)]
    qkv = {n: api.dispatch(t, key) for n, t in zip("qkv", whole)}
    wide = torch.promote_types(dtype, torch.float32)
    own = qkv["q"].shape[0]
    local = {"x": qkv["q"]}
    moved = {"input": torch.rand(4, 2, 3).to(wide), "output": torch.zeros(4, 2, 3, dtype=wide)}
    moved |= dict.fromkeys(("input_split_sizes", "output_split_sizes"), torch.tensor([2, 2]))
    lses = {"input_lse": moved["input"][..., 0] + 0, "output_lse": moved["output"][..., 0] + 0}
    ring = torch.tensor([(rank + 1) % size] * 2), torch.tensor([(rank - 1) % size] * 2)

    def cast(**given):
        return group_cast(**given, group=group, cast_lse=True).wait_post_process()

    def reduce(op):
        def call(**given):
            options = {"group": group, "reduce_op": op, "acc_reduce": False}
            return group_reduce(**given, **options).wait_post_process()

        return call

    table = {
        "one sink": (
            lambda **given: api.calc_attn(**given, key=key),
            {**qkv, "sink": torch.rand(1, HEADS[0], dtype=wide)},
        ),
        "sinks": (
            lambda **given: api.calc_attn(**given, key=key),
            {**qkv, "sink": torch.rand(own, 1, HEADS[0], dtype=wide)},
        ),
        "dispatch": (lambda x: api.dispatch(x, key), {"x": whole[0]}),
        "undispatch": (lambda x: api.undispatch(x, key), local),
        "partial": (lambda x: api.undispatch(x, key, is_partial_grad=True), local),
        "roll": (lambda x: api.roll(x, 3, 0, key), local),
        "rows behind heads": (lambda x: api.roll(x, 3, 1, key), {"x": qkv["q"].transpose(0, 1)}),
        "bytes": (lambda x: api.undispatch(x, key), {"x": qkv["q"] > 0}),
        "gathered": (lambda x: all_gather_fwd_scatter_bwd(x, group), local),
        "scattered": (
            lambda x: scatter_fwd_all_gather_bwd(x, group), {"x": whole[0].repeat(size, 1, 1)},
        ),
        "cast": (cast, {**moved, **lses, "dst_indices": ring[0][:, None], "src_index": ring[1]}),
    }  # fmt: skip
    back = {**moved, "dst_index": ring[0], "src_indices": ring[1][:, None]}
    for op in ("sum", "avg", "lse"):
        table[f"reduce {op}"] = reduce(op), back | (lses if op == "lse" else {})
    for name, (call, given) in table.items():
        try:
            check(call, given, is_exact)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


with torch.device("cpu"):  # ranks on GPUs, whose default is another, import this file too
    ATTENTION = attention("cpu", torch.float64, "cpu")
    BUILDERS = builders() | block_tables()


@pytest.mark.parametrize("name", [*ATTENTION, *BUILDERS])
def test_on_one_device(name):
    check(*(ATTENTION | BUILDERS)[name])


LISTED = (
    "cu_seqlens", "ids", "prefixes", "packed", "ends", "flashmask", "intervals", "tree", "inferred",
)  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_lists_under_another_default_device(name):
    call, tensors = BUILDERS[name]
    given = {argument: tensor.tolist() for argument, tensor in tensors.items()}
    wanted = flat(call(**tensors))
    with torch.device("meta"):
        made = (call(**given), call(**tensors))
    for found in made:
        assert all(torch.equal(*pair) for pair in zip(flat(found), wanted, strict=True))


FORMS = (
    "cu_seqlens", "document_ids", "prefix_lm", "packed_seq_params", "tree", "flashmask", "matrix",
    "interval_ends", "window",
)  # fmt: skip


def test_forms_under_another_default_device():
    wanted = masks.from_window(8, -1, 0)
    with torch.device("meta"):
        assert masks.from_mask_mod(lambda batch, head, q, k: q >= k, 8, 8) == wanted
        assert masks.from_block_mask(masks.to_block_mask(wanted, 4, "cpu")) == wanted
        _, tree = masks.from_token_ids([[1, 2], [1, 3]])
        assert tree.rows_of(1).tolist() == [0, 2]
        for form in FORMS:
            getattr(masks, f"to_{form}")(wanted)
    empty = masks.from_window(0, -1, 0)
    with torch.device("meta"):
        assert masks.to_tree(empty)[0].device.type == "cpu"
        assert masks.to_document_ids(empty).device.type == "cpu"


@pytest.mark.parametrize("size", [1, 2])
def test_over_ranks(ranks, size):
    ranks.run(size, over_ranks)
