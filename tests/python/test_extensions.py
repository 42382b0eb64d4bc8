# SPDX-License-Identifier: Apache-2.0
"""magi_attn_extensions against dense attention with a sink."""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import dense
import flash_reference
import magi_attn_extensions as extensions
from magi_attention.testing import ref_attn_func
from magi_attn_extensions import _installed

HEADS, KV_HEADS, DIM = 4, 2, 8


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def make_sink(layout, rows, lead=()):
    if layout is None:
        return None
    return random(2, HEADS, seed=9) if layout == "sh" else random(*lead, *rows, 2, HEADS, seed=9)


def agrees(call, leaves, wanted_call, through_lse=True):
    """out, lse and all gradients."""
    results = []
    for run in (call, wanted_call):
        for leaf in leaves:
            leaf.grad = None
        out, lse = run()
        loss = out.square().sum()
        if through_lse:
            loss = loss + lse[lse.isfinite()].sum()
        loss.backward()
        results.append([out.detach(), lse.detach(), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results):
        assert_close(one, other)


def wanted_batch(q, k, v, sink, layout, seen, **options):
    found = [
        ref_attn_func(
            q[b], k[b], v[b], seen, sink=sink[b] if layout == "ssh" else sink,
            sink_layout=layout or "sh", return_lse=True, **options,
        )
        for b in range(len(q))
    ]  # fmt: skip
    out = torch.stack([out for out, _ in found])
    return out, torch.stack([meta.lse.transpose(0, 1) for _, meta in found])


# By the library's kernels, or by FlashAttention of the functions' releases.
KERNELS = pytest.mark.parametrize("is_installed", [False, True], ids=["own", "installed"])


def kernels(is_installed):
    return flash_reference.installed(2, 3, 4) if is_installed else contextlib.nullcontext()


@KERNELS
@pytest.mark.parametrize("layout", [None, "sh", "ssh"])
@pytest.mark.parametrize("causal, window", [(False, (-1, -1)), (True, (-1, -1)), (True, (3, -1)),
                                            (False, (3, 2)), (True, (3, 4)), (False, (-1, 2)),
                                            (False, (2, -1))])  # fmt: skip
def test_batches(layout, causal, window, is_installed):
    with kernels(is_installed):
        for rows in ((7, 11), (11, 7)):
            check_batches(rows, layout, causal, window, is_installed)
    releases = ["2", "3"] + ["4"] * (window == (-1, -1))
    told = {f"{which} {n}" for n in releases for which in ("forward", "backward")}
    assert set(flash_reference.calls) == (told if is_installed else set())
    flash_reference.calls.clear()


def check_batches(rows, layout, causal, window, is_installed):
    rows_q, rows_k = rows
    q, k, v = (random(2, rows, heads, DIM, seed=seed) for seed, (rows, heads) in enumerate(
        ((rows_q, HEADS), (rows_k, KV_HEADS), (rows_k, KV_HEADS))))  # fmt: skip
    sink = make_sink(layout, (rows_q,), (2,))
    given = {"sink": sink, "sink_layout": layout or "sh", "causal": causal, "softcap": 4.0,
             "return_attn_probs": True}  # fmt: skip
    leaves = [q, k, v] + ([] if sink is None else [sink])
    seen = dense.window(rows_q, rows_k, causal, window)

    def wanted():
        return wanted_batch(q, k, v, sink, layout, seen, softcap=4.0)

    fa2, fa3 = extensions.fa2_func_with_sink, extensions.fa3_func_with_sink
    own = not is_installed
    agrees(lambda: fa2(q, k, v, window_size=window, **given), leaves, wanted, own)
    agrees(lambda: fa3(q, k, v, window_size=window, pack_gqa=True, **given), leaves, wanted, own)
    packed = extensions.fa2_kvpacked_func_with_sink
    kv = torch.stack((k, v), 2)
    out, _ = packed(q, kv, window_size=window, **given)
    assert_close(out, wanted()[0])
    if window == (-1, -1):
        agrees(lambda: extensions.fa4_func_with_sink(q, k, v, **given), leaves, wanted)


@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_packed_heads(layout):
    qkv = random(2, 9, 3, HEADS, DIM)
    sink = make_sink(layout, (9,), (2,))
    q, k, v = qkv.unbind(2)
    wanted, _ = wanted_batch(q, k, v, sink, layout, dense.window(9, 9, True))
    for function in (
        extensions.fa2_qkvpacked_func_with_sink, extensions.fa3_qkvpacked_func_with_sink
    ):  # fmt: skip
        assert_close(function(qkv, sink, layout, causal=True), wanted)
    grouped = torch.cat((q, k[:, :, :2], v[:, :, :2]), 2)
    out = extensions.fa3_qkvpacked_func_with_sink(
        grouped, sink, layout, causal=True, num_heads_q=HEADS
    )
    assert_close(out, wanted_batch(q, k[:, :, :2], v[:, :, :2], sink, layout,
                                   dense.window(9, 9, True))[0])  # fmt: skip


@KERNELS
@pytest.mark.parametrize("layout", [None, "sh", "ssh"])
@pytest.mark.parametrize("on_tensors", [False, True])
def test_documents(layout, on_tensors, is_installed):
    with kernels(is_installed):
        check_documents(layout, on_tensors, is_installed)
    assert bool(flash_reference.calls) == is_installed
    flash_reference.calls.clear()


def check_documents(layout, on_tensors, is_installed):
    bounds_q, bounds_k = [0, 4, 9, 9, 16], [0, 6, 9, 12, 20]
    q, k, v = random(16, HEADS, DIM), random(20, KV_HEADS, DIM), random(20, KV_HEADS, DIM, seed=3)
    sink = make_sink(layout, (16,))
    seen = torch.zeros(16, 20, dtype=torch.bool)
    for q0, q1, k0, k1 in zip(bounds_q, bounds_q[1:], bounds_k, bounds_k[1:]):
        seen[q0:q1, k0:k1] = dense.window(q1 - q0, k1 - k0, True)
    cu = (bounds_q, bounds_k)
    if on_tensors:
        cu = tuple(torch.tensor(bounds, dtype=torch.int32) for bounds in cu)
    given = {"sink": sink, "sink_layout": layout or "sh", "causal": True,
             "return_attn_probs": True}  # fmt: skip
    leaves = [q, k, v] + ([] if sink is None else [sink])

    def wanted():
        out, meta = ref_attn_func(
            q, k, v, seen, sink=sink, sink_layout=layout or "sh", return_lse=True
        )
        return out, meta.lse.transpose(0, 1)

    for name in ("fa2", "fa3", "fa4"):
        function = getattr(extensions, f"{name}_varlen_func_with_sink")
        through_lse = not is_installed or name == "fa4"
        agrees(lambda: function(q, k, v, *cu, 7, 8, **given), leaves, wanted, through_lse)
    kv = torch.stack((k, v), 1)
    out, _ = extensions.fa2_varlen_kvpacked_func_with_sink(q, kv, *cu, 7, 8, **given)
    assert_close(out, wanted()[0])
    qkv = torch.stack((q, q, q), 1)
    out = extensions.fa2_varlen_qkvpacked_func_with_sink(qkv, cu[0], 7, causal=True)
    alone = extensions.fa2_varlen_func_with_sink(q, q, q, cu[0], cu[0], 7, 7, causal=True)
    assert_close(out, alone)


def test_gradient_of_lse_that_a_release_does_not_have():
    q = random(1, 4, 2, 8)
    with flash_reference.installed(2):
        out, lse = extensions.fa2_func_with_sink(q, q, q, return_attn_probs=True)
        with pytest.raises(NotImplementedError, match=r"^lse has no gradient"):
            (out.sum() + lse.sum()).backward()
        extensions.fa3_func_with_sink(q, q, q)
    assert flash_reference.calls == ["forward 2"]
    flash_reference.calls.clear()


@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_rows_without_keys(layout):
    """FlashAttention 2 says lse inf of them; with a sink the sink's lse is right."""
    q, k = random(2, 7, HEADS, DIM), random(2, 3, HEADS, DIM, seed=1)
    sink = make_sink(layout, (7,), (2,))

    def call():
        return extensions.fa2_func_with_sink(
            q, k, k, sink, layout, causal=True, return_attn_probs=True
        )

    def wanted():
        return wanted_batch(q, k, k, sink, layout, dense.window(7, 3, True))

    with flash_reference.installed(2):
        agrees(call, [q, k, sink], wanted, False)
        _, lse = extensions.fa2_func_with_sink(q, k, k, causal=True, return_attn_probs=True)
        assert lse[:, :, :4].isneginf().all() and lse[:, :, 4:].isfinite().all()
    flash_reference.calls.clear()


@pytest.mark.parametrize(
    "release, major, dim, dtype, wanted",
    [(2, 8, 64, torch.bfloat16, True), (2, 7, 64, torch.bfloat16, False),
     (3, 9, 256, torch.float16, True), (3, 10, 64, torch.float16, False),
     (3, 9, 64, torch.float32, False), (3, 9, 60, torch.float16, False),
     (4, 10, 128, torch.bfloat16, True), (4, 10, 192, torch.bfloat16, False),
     (4, 9, 192, torch.bfloat16, True), (4, 12, 64, torch.bfloat16, False)],
)  # fmt: skip
def test_what_an_installed_release_serves(monkeypatch, release, major, dim, dtype, wanted):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(_installed, "_is_installed", lambda module: True)
    with FakeTensorMode():
        q = torch.empty(4, 2, dim, dtype=dtype, device="cuda:0")
        assert _installed.serves(release, q, q) == wanted
        assert not _installed.serves(release, q.cpu(), q.cpu())
        monkeypatch.setattr(_installed, "_is_installed", lambda module: False)
        assert not _installed.serves(release, q, q)


def test_refusals():
    q = torch.zeros(1, 4, 2, 8)
    for call, name in (
        (lambda: extensions.fa2_func_with_sink(q, q, q, dropout_p=0.1), "dropout_p"),
        (lambda: extensions.fa2_func_with_sink(q, q, q, alibi_slopes=q), "alibi_slopes"),
        (lambda: extensions.fa3_func_with_sink(q, q, q, qv=q), "qv"),
        (lambda: extensions.fa3_func_with_sink(q, q, q, attention_chunk=4), "attention_chunk"),
    ):
        with pytest.raises(NotImplementedError, match=f"^{name} is not available"):
            call()
    with pytest.raises(ValueError, match="q has 3 axes; allowed: 4"):
        extensions.fa2_func_with_sink(q[0], q, q)
    with pytest.raises(ValueError, match="k has a batch of 2; allowed: 1"):
        extensions.fa4_func_with_sink(q, q.repeat(2, 1, 1, 1), q)


def chosen_keys(rows_q, rows_k, topk, seed=0):
    """Different keys of each list, in any order, and lists without any."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows_q, KV_HEADS, rows_k, generator=generator)
    lists = scores.topk(topk, dim=-1, sorted=False).indices.int()
    lists[rows_q // 2, 0] = -1
    return lists


def seen_by_lists(lists, rows_k):
    marks = torch.zeros(*lists.shape[:2], rows_k + 1, dtype=torch.bool)
    marks.scatter_(2, torch.where(lists < 0, rows_k, lists).long(), True)
    return marks[..., :rows_k].permute(1, 0, 2).repeat_interleave(HEADS // KV_HEADS, 0)


class TestDsa:
    """Chosen keys against dense attention of each head under its mask."""

    rows_q, rows_k = 20, 33

    def leaves(self):
        rows = (self.rows_q, HEADS), (self.rows_k, KV_HEADS), (self.rows_k, KV_HEADS)
        return [random(*shape, DIM, seed=seed) for seed, shape in enumerate(rows)]

    @pytest.mark.parametrize(
        "backend, block",
        [("ffa_index_sparse", 1), ("ffa_block_sparse", 1), ("ffa_block_sparse", 4), ("sdpa", 1),
         ("ffa_index_attn", 1), ("ffa_sparse_load", 1)],
    )  # fmt: skip
    def test_backends(self, backend, block):
        lists = chosen_keys(self.rows_q, -(-self.rows_k // block), 5)
        seen = seen_by_lists(lists, -(-self.rows_k // block))
        seen = seen.repeat_interleave(block, -1)[..., : self.rows_k]
        leaves = self.leaves()
        options = {"softmax_scale": 0.4, "backend": backend, "sparse_k_block_size": block}
        agrees(
            lambda: extensions.dsa_attn_func(*leaves, lists, **options),
            leaves,
            lambda: dense.attention(*leaves, seen, scale=0.4)[:2],
        )

    def test_index_map_of_1_1_1(self):
        """Without gradients, which torch's flex_attention has not on the CPU."""
        lists = chosen_keys(self.rows_q, self.rows_k, 5)
        leaves = [leaf.detach() for leaf in self.leaves()]
        out, lse = extensions.dsa_attn_func(*leaves, lists)
        for backend in ("ffa_index_attn", "ffa_sparse_load", "sdpa", "flex"):
            older, older_lse = extensions.dsa_attn_func(
                *leaves, index_map=lists.transpose(0, 1), backend=backend
            )
            assert_close(older, out)
            assert_close(older_lse, lse)

    def test_bad_arguments(self):
        leaves, lists = self.leaves(), chosen_keys(self.rows_q, self.rows_k, 5)
        with pytest.raises(ValueError, match="backend is 'fa9'; allowed: ffa_index_sparse"):
            extensions.dsa_attn_func(*leaves, lists, backend="fa9")
        with pytest.raises(ValueError, match="index_sparse_indices is missing"):
            extensions.dsa_attn_func(*leaves)
        with pytest.raises(ValueError, match="index_sparse_indices is given beside index_map"):
            extensions.dsa_attn_func(*leaves, lists, index_map=lists)
        with pytest.raises(TypeError, match=r"index_map is torch.int64; allowed: an int32 tensor"):
            extensions.dsa_attn_func(*leaves, index_map=lists.transpose(0, 1).long())
        with pytest.raises(TypeError, match=r"indices.dtype is torch.int64; allowed: int32"):
            extensions.dsa_attn_func(*leaves, lists.long(), backend="sdpa")
        with pytest.raises(ValueError, match="k_block_size is 512"):
            extensions.dsa_attn_func(
                *leaves, lists, backend="ffa_block_sparse", sparse_k_block_size=512
            )
