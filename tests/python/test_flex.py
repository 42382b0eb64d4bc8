# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func on one device against dense float64 attention."""

import random

import numpy
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import dense
from magi_attention.api import flex_flash_attn_func
from magi_attention.functional import ffa_fa4_func
from magi_attention.functional._operators import flex_backward_op, flex_forward_op

ROWS = 60


def tensors(mask):
    q_ranges = torch.tensor(mask.q_ranges, dtype=torch.int32).reshape(-1, 2)
    k_ranges = torch.tensor(mask.k_ranges, dtype=torch.int32).reshape(-1, 2)
    return q_ranges, k_ranges, torch.tensor(mask.types, dtype=torch.int32)


def ranges_of(mask):
    return dict(zip(("q_ranges", "k_ranges", "attn_type_map"), tensors(mask)))


def inputs(rows_q, rows_k, heads=(4, 2), dim=16, dim_v=None, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows_q, heads[0], dim), (rows_k, heads[1], dim), (rows_k, heads[1], dim_v or dim))
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    return [t.requires_grad_() for t in made]


def close(found, wanted, tolerance=1e-10):
    assert found.shape == wanted.shape and not found.isnan().any()
    assert torch.equal(found.isinf(), wanted.isinf())
    error = (found.double() - wanted)[wanted.isfinite()].abs()
    assert error.numel() == 0 or error.max() <= tolerance


@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (3, 1)])
@pytest.mark.parametrize("name", sorted(dense.masks(ROWS)))
def test_masks(name, heads):
    mask = dense.masks(ROWS)[name]
    q, k, v = inputs(ROWS, ROWS, heads, dim_v=8)
    out, meta = flex_flash_attn_func(q, k, v, *tensors(mask), return_max_logits=True)
    wanted = dense.attention(q, k, v, mask)
    for found, expected in zip((out, meta.lse, meta.max_logits), wanted):
        close(found.detach(), expected.detach())
    upstream = torch.randn(out.shape, dtype=torch.float64)
    found = torch.autograd.grad(out, (q, k, v), upstream)
    expected = torch.autograd.grad(wanted[0], (q, k, v), upstream)
    for f, e in zip(found, expected):
        close(f, e)


def test_random_slices(rng):
    for _ in range(20):
        rows_q, rows_k, count = rng.randint(1, 40), rng.randint(1, 40), rng.randint(1, 6)

        def ranges(limit):
            ends = (sorted(rng.randint(0, limit) for _ in range(2)) for _ in range(count))
            return [tuple(pair) for pair in ends]

        types = [rng.randrange(4) for _ in range(count)]
        mask = dense.Mask(ranges(rows_q), ranges(rows_k), types, rows_q, rows_k)
        q, k, v = inputs(rows_q, rows_k, seed=rng.randrange(1000))
        out, meta = flex_flash_attn_func(q, k, v, *tensors(mask))
        wanted, lse, _ = dense.attention(q, k, v, mask)
        close(out.detach(), wanted.detach())
        close(meta.lse.detach(), lse.detach())


@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_gradients_of_everything(layout):
    mask = dense.masks(12)["four_types"]
    q, k, v = inputs(12, 12, dim=8)
    lead = (12,) if layout == "ssh" else ()
    sink = torch.randn(*lead, 3, 4, dtype=torch.float64, requires_grad=True)
    ranges = tensors(mask)

    def function(q, k, v, sink):
        out, meta = flex_flash_attn_func(
            q, k, v, *ranges, sink=sink, sink_layout=layout, softcap=3.0, softmax_scale=0.4
        )
        return out, meta.lse

    assert torch.autograd.gradcheck(function, (q, k, v, sink))
    wanted, lse, _ = dense.attention(q, k, v, mask, sink, 0.4, 3.0)
    out, found = function(q, k, v, sink)
    close(out.detach(), wanted.detach())
    close(found.detach(), lse.detach())


def test_lse_alone_carries_a_gradient():
    mask = dense.masks(20)["causal"]
    q, k, v = inputs(20, 20)
    _, meta = flex_flash_attn_func(q, k, v, *tensors(mask))
    found = torch.autograd.grad(meta.lse.sum(), (q, k, v))
    expected = torch.autograd.grad(
        dense.attention(q, k, v, mask)[1].sum(), (q, k, v), materialize_grads=True
    )
    for f, e in zip(found, expected):
        close(f, e)


@pytest.mark.parametrize("has_sink", [False, True])
def test_lse_alone_carries_a_gradient_through_a_checkpoint(has_sink):
    """A checkpoint lets saved tensors be unpacked once."""
    mask = dense.masks(20)["causal"]
    qkv = inputs(20, 20)
    sink = torch.randn(1, qkv[0].shape[1], requires_grad=True) if has_sink else None

    def sums(q, k, v):
        return flex_flash_attn_func(q, k, v, *tensors(mask), sink=sink)[1].lse.sum()

    found = torch.autograd.grad(checkpoint(sums, *qkv, use_reentrant=False), qkv, allow_unused=True)
    expected = torch.autograd.grad(sums(*qkv), qkv, allow_unused=True)
    for f, e in zip(found, expected):
        assert torch.equal(f, e)


def test_rows_without_keys():
    q, k, v = inputs(4, 4)
    ranges = torch.tensor([[1, 2]], dtype=torch.int32)
    out, meta = flex_flash_attn_func(q, k, v, ranges, ranges)
    assert (out[[0, 2, 3]] == 0).all() and meta.lse[[0, 2, 3]].isneginf().all()
    sink = torch.randn(2, 4)
    _, meta = flex_flash_attn_func(q, k, v, ranges, ranges, sink=sink)
    close(meta.lse[0].detach(), torch.logsumexp(sink.double(), 0))
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types(dtype):
    mask = dense.masks(ROWS)["varlen_causal"]
    q, k, v = inputs(ROWS, ROWS, dtype=dtype)
    out, meta = flex_flash_attn_func(q, k, v, *tensors(mask))
    assert out.dtype == dtype and meta.lse.dtype == torch.float32 and meta.max_logits is None
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted, _, _ = dense.attention(*wide, mask)
    out.sum().backward()
    wanted.sum().backward()
    tolerance = 8 * torch.finfo(dtype).eps
    close(out.detach(), wanted.detach(), tolerance * 2)
    for found, expected in zip((q, k, v), wide):
        assert found.grad.dtype == dtype
        close(found.grad, expected.grad, tolerance * expected.grad.abs().max().item())


def test_strided_inputs():
    packed = torch.randn(ROWS, 3, 4, 16, dtype=torch.float64)
    mask = dense.masks(ROWS)["causal"]
    q, k, v = packed.unbind(1)
    found, _ = flex_flash_attn_func(q, k, v, *tensors(mask))
    swapped = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (q, k, v)]
    again, _ = flex_flash_attn_func(*swapped, *tensors(mask))
    assert torch.equal(found, again)
    close(found, dense.attention(q, k, v, mask)[0])


def test_saved_tensors_that_come_back_with_other_strides():
    """As hooks that move them elsewhere and back do (torch.autograd.graph.save_on_cpu)."""
    mask = dense.masks(ROWS)["causal"]
    gradients = []
    for is_packed in (False, True):
        packed = torch.randn(ROWS, 3, 4, 16, generator=torch.Generator().manual_seed(0))
        packed.requires_grad_()
        pack = torch.Tensor.contiguous if is_packed else torch.Tensor.detach
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out, meta = flex_flash_attn_func(*packed.unbind(1), *tensors(mask))
        (out.pow(2).sum() + meta.lse.sum()).backward()
        gradients.append(packed.grad)
    assert torch.equal(*gradients)


def test_same_bits_and_options_without_effect():
    mask = dense.masks(ROWS)["block_causal_q_overlap"]
    q, k, v = inputs(ROWS, ROWS, dtype=torch.bfloat16)
    plain, _ = flex_flash_attn_func(q, k, v, *tensors(mask))
    steered, _ = flex_flash_attn_func(
        q, k, v, *tensors(mask), deterministic=True, sm_margin=4, auto_range_merge=True,
        ref_block_size=(64, 64), max_seqlen_q=30, swap_ab=True, pack_gqa=True, cat_gqa=True,
        swap_bwd_qk_loop=True, disable_fwd_atomic_reduction=True,
        disable_bwd_dkv_atomic_reduction=True, sparse_load=True,
    )  # fmt: skip
    assert torch.equal(plain, steered)
    newest, _ = flex_flash_attn_func(
        q, k, v, *tensors(mask), range_merge=True, block_sparse=True, swap_bwd_qk_loop=None,
        sparse_k_block_size=1, disable_bwd_dq_atomic_reduction=True,
    )  # fmt: skip
    assert torch.equal(plain, newest)
    fa4, meta = ffa_fa4_func(q, k, v, *tensors(mask), softcap=2.0, reuse_attn_arg=True)
    capped, wanted = flex_flash_attn_func(q, k, v, *tensors(mask), softcap=2.0)
    assert torch.equal(fa4, capped) and torch.equal(meta.lse, wanted.lse)
    with pytest.warns(DeprecationWarning, match="max_seqlen_k") as caught:
        old, _ = flex_flash_attn_func(q, k, v, *tensors(mask), max_seqlen_k=30)
    assert torch.equal(plain, old) and caught[0].filename == __file__


def test_ranges_changed_in_place_are_seen():
    q, k, v = inputs(4, 4)
    ranges = torch.tensor([[0, 4]], dtype=torch.int32)
    first, _ = flex_flash_attn_func(q, k, v, ranges, ranges)
    ranges[0, 1] = 2
    second, _ = flex_flash_attn_func(q, k, v, ranges, ranges)
    assert (second[2:] == 0).all() and not torch.equal(first, second)


def graph_agrees(layer, leaves_of, dynamic):
    """One graph gives the tensors of layer(*leaves), of which out and lse have gradients."""
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    results = []
    for function in (layer, compiled):
        leaves = leaves_of()
        found = function(*leaves)
        (found[0].pow(2).sum() + found[1].sum()).backward()
        results.append([*found, *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for eager, graph in zip(*results):
        assert torch.allclose(eager, graph)


class TestCompiler:
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_full_graph(self, dynamic):
        mask = dense.masks(ROWS)["varlen_causal"]
        ranges = tensors(mask)
        sink = torch.randn(1, 4)

        def layer(q, k, v, sink):
            out, meta = flex_flash_attn_func(q * 2, k, v, *ranges, sink=sink)
            return out + 1, meta.lse

        graph_agrees(layer, lambda: [*inputs(ROWS, ROWS), sink.clone().requires_grad_()], dynamic)

    def test_operators(self):
        mask = dense.masks(20)["four_types"]
        ranges = tensors(mask)
        q, k, v = (t.detach() for t in inputs(20, 20, dim=8))
        permuted = q.transpose(0, 1).contiguous().transpose(0, 1)
        sink = torch.randn(2, 4, dtype=torch.float64)
        for given_q, given_sink, with_max in ((q, None, False), (permuted, sink, True)):
            arguments = (given_q, k, v, *ranges, given_sink, 0.0, 0.0, 0, with_max, 0)
            torch.library.opcheck(flex_forward_op, arguments)
            out, lse, _ = flex_forward_op(*arguments)
            torch.library.opcheck(
                flex_backward_op,
                (out, lse, given_q, k, v, out, lse, *ranges, given_sink, 0.0, 0.0, 0, 0, False),
            )

    def test_function_transforms_are_refused(self):
        """In words of torch, not by a call with a wrapper's memory."""
        ranges = torch.tensor([[0, 4]], dtype=torch.int32)
        q = torch.randn(3, 4, 2, 8)

        def attend(x):
            return flex_flash_attn_func(x, x, x, ranges, ranges)[0].sum()

        for transform in (torch.func.vmap, lambda f: lambda x: torch.func.grad(f)(x[0])):
            with pytest.raises(RuntimeError, match="are not available"):
                transform(attend)(q)

    def test_fake_tensors(self):
        with FakeTensorMode():
            q, kv = torch.empty(8, 4, 16, dtype=torch.bfloat16), torch.empty(8, 2, 16).bfloat16()
            ranges = torch.zeros(1, 2, dtype=torch.int32)
            out, meta = flex_flash_attn_func(q, kv, kv, ranges, ranges)
        assert out.shape == (8, 4, 16) and out.dtype == torch.bfloat16
        assert meta.lse.shape == (8, 4) and meta.lse.dtype == torch.float32


RANGE = torch.tensor([[0, 6]], dtype=torch.int32)
QKV = {"q": torch.zeros(6, 4, 8), "k": torch.zeros(6, 2, 8), "v": torch.zeros(6, 2, 8)}
TYPES = torch.zeros(1, dtype=torch.int32)
GOOD = {**QKV, "q_ranges": RANGE, "k_ranges": RANGE.clone(), "attn_type_map": TYPES}
BAD = [
    ({"q": [1]}, TypeError, "q is a list"),
    ({"q_ranges": torch.zeros(1, 2, dtype=torch.int32, device="meta")}, ValueError,
     "q_ranges is on meta"),
    ({"k_ranges": torch.zeros(2, 2, dtype=torch.int32)}, ValueError, "k_ranges has 2 rows"),
    ({"k_ranges": torch.tensor([[0, 7]], dtype=torch.int32)}, ValueError, "k_ranges"),
    ({"q_ranges": torch.tensor([[-1, 6]], dtype=torch.int32)}, ValueError, "q_ranges"),
    ({"q_ranges": torch.tensor([[4, 2]], dtype=torch.int32)}, ValueError, "q_ranges"),
    ({"attn_type_map": torch.zeros(2, dtype=torch.int32)}, ValueError, "attn_type_map has shape"),
    ({"attn_type_map": torch.tensor([4], dtype=torch.int32)}, ValueError,
     r"attn_type_map\[0\] is 4; allowed: 0 to 3"),
    ({"attn_type_map": torch.zeros(1, dtype=torch.int32, device="meta")}, ValueError,
     "attn_type_map is on meta"),
    ({"attn_type_map": torch.zeros(1).long()}, TypeError, "attn_type_map.dtype is torch.int64"),
    ({"k_ranges": torch.zeros(1, 2, dtype=torch.int32, device="meta")}, ValueError,
     "k_ranges is on meta"),
    ({"sm_margin": -1}, ValueError, "sm_margin is -1"),
    ({"sm_margin": 1 << 40}, ValueError, "sm_margin is 1099511627776"),
    ({"softmax_scale": 10**400}, ValueError, "softmax_scale is 1000"),
    ({"softcap": 10**400}, ValueError, "softcap is 1000"),
    ({"sm_margin": "4"}, TypeError, "sm_margin is '4'"),
    ({"softmax_scale": "1"}, TypeError, "softmax_scale is a str"),
    ({"softcap": None}, TypeError, "softcap is a NoneType"),
    ({"deterministic": "yes"}, TypeError, "deterministic is 'yes'; allowed: a bool"),
    ({"deterministic": torch.tensor([False])}, TypeError, "deterministic is tensor"),
    ({"return_max_logits": "no"}, TypeError, "return_max_logits is 'no'; allowed: a bool"),
    ({"attn_type_map": [0]}, TypeError, "attn_type_map is a list"),
    ({"sink": torch.zeros(1, 4, dtype=torch.int32)}, TypeError, "sink.dtype"),
    ({"sink": torch.zeros(5, 1, 4), "sink_layout": "ssh"}, ValueError, "sink.shape is"),
    ({"sink_layout": "hs"}, ValueError, "sink_layout is 'hs'"),
    ({"sink_layout": "shd"}, NotImplementedError, "shd"),
    ({"index_attn": True}, ValueError, "index_attn is True without index_sparse_indices"),
    ({"index_attn_indices": torch.zeros(1)}, ValueError, "q_ranges is given beside"),
    ({"index_sparse": True}, ValueError, "index_sparse is True without"),
    ({"index_sparse_indices": torch.zeros(1)}, ValueError, "q_ranges is given beside"),
    ({"sparse_k_block_size": 2}, ValueError, "^sparse_k_block_size is 2 without"),
    ({"k_block_size": 2}, ValueError, "sparse_k_block_size is 2 without"),
    ({"q_block_size": 2}, ValueError, "q_block_size is 2 without"),
    ({"unknown": 1}, TypeError, "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, match", BAD, ids=[b[2] for b in BAD])
def test_bad_arguments(change, error, match):
    flex_flash_attn_func(**GOOD)
    with pytest.raises(error, match=match):
        flex_flash_attn_func(**{**GOOD, **change})


@pytest.mark.parametrize("yes", [True, torch.tensor(True), numpy.bool_(True), numpy.array(True)])
def test_bools_of_other_packages(yes):
    _, meta = flex_flash_attn_func(**GOOD, deterministic=yes, return_max_logits=yes)
    assert meta.max_logits is not None


def test_masks_are_kept_apart():
    """More masks than are kept, in random order, each with its own result."""
    generator = random.Random(0)
    q, k, v = inputs(100, 100, dim=4)
    order = list(range(1, 100)) * 2
    generator.shuffle(order)
    for end in order:
        ranges = torch.tensor([[0, end]], dtype=torch.int32)
        _, meta = flex_flash_attn_func(q, k, v, ranges, ranges)
        assert meta.lse[:end].isfinite().all() and meta.lse[end:].isinf().all()


@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
@pytest.mark.parametrize("is_differentiable", [False, True])
def test_forward_mode_is_refused(is_differentiable, name):
    """A tangent would be lost without a word; outside of its level a dual tensor is a plain one."""
    mask = dense.masks(ROWS)["causal"]
    given = dict(zip("qkv", inputs(ROWS, ROWS)), sink=torch.zeros(1, 4, dtype=torch.float64))
    given = {n: t.detach() for n, t in given.items()}
    given |= ranges_of(mask)
    wanted = flex_flash_attn_func(**given)[0]
    with torch.set_grad_enabled(is_differentiable):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
            assert torch.equal(flex_flash_attn_func(**given)[0], wanted)
            with pytest.raises(NotImplementedError, match=r"tangent|jvp"):
                flex_flash_attn_func(**{**given, name: dual})
        assert torch.equal(flex_flash_attn_func(**{**given, name: dual})[0], wanted)
