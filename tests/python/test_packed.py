# SPDX-License-Identifier: Apache-2.0
"""Packed sequences and prefix trees for any model."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

import dense
from magi_attention import attention
from magi_attention.integrations import packed
from magi_attention.integrations.packed import AttnMaskSpec, MagiState, PrefixTree
from ranks import over, refuses, sum_over

HEADS = (4, 2, 8)
VOCABULARY = 37
NODES = (7, 5, 0, 9, 1, 4, 11, 3)
PATHS = ([0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1], [6, 7])  # node 2 is empty, [0, 1] a prefix
WEIGHTS = (1.0, 0.5, 2.0, -1.5, 3.0)  # of samples, such as advantages


class Model(torch.nn.Module):
    """Two layers of grouped-query attention with rotary positions; attend(q, k, v) is swapped."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)

        def weights(*shape):
            values = torch.randn(*shape, generator=generator, dtype=torch.float64)
            return torch.nn.Parameter(values / shape[-1] ** 0.5)

        heads_q, heads_kv, dim = HEADS
        self.embedding = weights(VOCABULARY, 32)
        self.qkv = torch.nn.ParameterList(
            weights((heads_q + 2 * heads_kv) * dim, 32) for _ in range(2)
        )
        self.out = torch.nn.ParameterList(weights(32, heads_q * dim) for _ in range(2))

    def forward(self, ids, positions, attend):
        """ids, positions [rows] or [1, rows] -> logits [..., vocabulary]."""
        heads_q, heads_kv, dim = HEADS
        x = self.embedding[ids]
        for qkv, out in zip(self.qkv, self.out):
            rows = F.linear(F.rms_norm(x, (32,)), qkv).unflatten(-1, (-1, dim))
            q, k, v = rows.split((heads_q, heads_kv, heads_kv), -2)
            q, k = _rotate(q, positions), _rotate(k, positions)
            x = x + F.linear(attend(q, k, v).flatten(-2), out)
        return F.linear(F.rms_norm(x, (32,)), self.embedding)


def _rotate(x, positions):
    angles = positions[..., None].double() * torch.tensor([1.0, 0.3, 0.09, 0.027])
    cos, sin = angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def dense_attend(spec: AttnMaskSpec):
    """torch's attention under the mask of a spec."""
    kinds = {"full": 0, "causal": 1, "inv_causal": 2, "bi_causal": 3}
    sides = ([tuple(pair) for pair in side] for side in (spec.q_ranges, spec.k_ranges))
    rows = spec.total_seqlen
    types = [kinds[str(kind)] for kind in spec.mask_types]
    visible = dense.Mask(*sides, types, rows, rows).multiplicity()
    assert visible.max() <= 1  # no pair is shown twice

    def attend(q, k, v):
        shape = q.shape
        q, k, v = (t.reshape(1, rows, *t.shape[-2:]).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, visible.bool(), enable_gqa=True)
        return out.transpose(1, 2).reshape(shape)

    return attend


def batch_of(lengths) -> dict:
    """A packed batch of documents: labels of rows, the last row of a document has none."""
    rows = sum(lengths)
    generator = torch.Generator(torch.get_default_device()).manual_seed(rows)
    ids = torch.randint(VOCABULARY, (rows,), generator=generator)
    labels = ids.roll(-1)
    ends = list(itertools.accumulate(lengths))
    labels[[end - 1 for end in ends]] = -100
    positions = torch.cat([torch.arange(length) for length in lengths])
    bounds = torch.tensor([0, *ends], dtype=torch.int32)
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "cu_seqlens": bounds}


def loss_of(logits, labels):
    flat = logits.reshape(-1, VOCABULARY)
    return F.cross_entropy(flat, labels.reshape(-1), reduction="sum", ignore_index=-100)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def reference(batch, spec: AttnMaskSpec):
    model = Model()
    logits = model(batch["input_ids"], batch["position_ids"], dense_attend(spec))
    loss = loss_of(logits, batch["labels"])
    loss.backward()
    return loss.detach(), gradients(model)


def check_sums(group, loss, model, wanted) -> None:
    """Losses and gradients of ranks add up to the wanted ones."""
    total, found = loss.detach().clone(), gradients(model)
    sum_over(group, total, *found)
    wanted_loss, wanted_gradients = wanted
    assert abs(total - wanted_loss) <= 1e-9 * max(1.0, abs(wanted_loss)), (total, wanted_loss)
    for gradient, other in zip(found, wanted_gradients):
        assert (gradient - other).abs().max() <= 1e-9 * max(1.0, other.abs().max())


def packed_documents(group, lengths, window=-1, is_of_calls=False) -> None:
    """magi_prepare_packed_cp and the attention function, against a dense mask. is_of_calls: the
    window comes with calls, as another mask on the placement of the active plan.
    """
    batch = batch_of(lengths)
    spec = AttnMaskSpec.varlen(lengths, window_size=(window, 0))
    model = Model()
    packed.set_active_cp_group(group)
    local, _ = packed.magi_prepare_packed_cp(
        HEADS, batch, group, spec=None if is_of_calls else spec
    )
    of_call = {"magi_attn_spec": spec, "window_size": (window, 0)} if is_of_calls else {}
    attend = functools.partial(packed.make_magi_attn_func(), **of_call)
    logits = model(local["input_ids"], local["position_ids"], attend)
    loss = loss_of(logits, local["labels"])
    loss.backward()
    check_sums(group, loss, model, reference(batch, spec))
    packed.set_active_cp_group(None)


def without_a_group(batch) -> None:
    """None is refused in one of several processes, by whatever would make a plan or attend."""
    packed.set_active_cp_group(None)
    q, attend = torch.zeros(60, 4, 8), packed.make_magi_attn_func()
    tree = PrefixTree([60], [[0]])
    spec = AttnMaskSpec.causal(60)
    sizes = dict(num_heads_q=2, num_heads_kv=2, head_dim=8, cp_group=None)
    for call in (
        lambda: packed.magi_prepare_batch(HEADS, batch, None),
        lambda: packed.magi_prepare_packed_cp(HEADS, batch, None),
        lambda: packed.magi_prepare_prefix_tree(HEADS, {"input_ids": q[:, 0, 0]}, tree, None),
        lambda: packed.build_flex_key(spec, **sizes),
        lambda: packed.setup_magi({"model.backend.attn": "magi"}, None),
        lambda: attend(q, q, q),
        lambda: attend(q, q, q, magi_attn_spec=spec),
    ):
        refuses(call, ValueError, "cp_group is None in one of 4 processes")
    mesh = DeviceMesh("cpu", range(4), mesh_dim_names=("dp",))
    state = packed.setup_magi({"model.backend.attn": "magi"}, mesh)
    assert state.cp_size == 1
    packed.magi_prepare_packed_cp(HEADS, batch, state.cp_group)
    assert attend(q, q[:, :2], q[:, :2]).shape == q.shape


def weight_of(weight, count):
    """The weights of a sample's labels, of one for all or of one for each token."""
    return torch.as_tensor(weight, dtype=torch.float64).expand(count + 1)[1:]


def samples_alone(tree: PrefixTree, ids, weights):
    """Loss and gradients of a tree's samples, each computed by itself: sums of weighted losses."""
    model = Model()
    total = torch.zeros((), dtype=torch.float64)
    log_probs = []
    for ranges, weight in zip(tree.sample_token_ranges, weights):
        sample = torch.cat([ids[begin:end] for begin, end in ranges])
        attend = dense_attend(AttnMaskSpec.causal(len(sample)))
        logits = model(sample, torch.arange(len(sample)), attend)
        found = logits[:-1].log_softmax(-1).gather(1, sample[1:, None])[:, 0]
        total = total - found @ weight_of(weight, len(found))
        log_probs.append(found.detach())
    total.backward()
    return (total.detach(), gradients(model)), log_probs


def prefix_tree(group, is_called_with_plan=False) -> None:
    """Trees over any number of ranks: shared rows once, branch-wise positions, weights."""
    tree = PrefixTree(NODES, PATHS)
    ids = torch.randint(VOCABULARY, (sum(NODES),), generator=torch.Generator().manual_seed(5))
    weights = [torch.full((19,), 1.0), *WEIGHTS[1:]]
    lengths = [sum(end - begin for begin, end in r) for r in tree.sample_token_ranges]
    weights[0] = torch.arange(lengths[0], dtype=torch.float64) / 4  # one for each token
    wanted, wanted_log_probs = samples_alone(tree, ids, weights)
    model = Model()
    attend = packed.make_magi_attn_func()
    packed.set_active_cp_group(None if is_called_with_plan else group)
    local, plan = packed.magi_prepare_prefix_tree(
        HEADS, {"input_ids": ids[None]}, tree, group, sample_weights=weights
    )
    if is_called_with_plan:
        packed.set_active_plan(None)

        def call(q, k, v):
            return attend(q, k, v, magi_plan=local["magi_plan"])
    else:
        call = attend
    logits = model(local["input_ids"], local["position_ids"], call)
    loss = packed.branch_loss(logits, local["labels"], local["loss_weights"])
    loss.backward(retain_graph=True)
    check_sums(group, loss, model, wanted)
    found = tree.of_samples(packed.branch_log_probs(logits, local["labels"]), plan)
    for one, other in zip(found, wanted_log_probs):
        assert (one - other).abs().max() < 1e-9
    model.zero_grad()
    whole = -sum(one @ weight_of(weight, len(one)) for one, weight in zip(found, weights))
    whole.backward()  # a loss that each rank makes of all samples
    check_sums(group, whole / (1 if group is None else group.size()), model, wanted)
    packed.set_active_cp_group(None)


@over(1, 2, 4)
def test_state(group):
    """setup_magi and prepare_llm_batch of a model of one's own, over a device mesh."""
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("cp",))
    state = packed.setup_magi({"model": {"backend": {"attn": "magi"}}}, mesh, label="a test")
    assert state.custom and not state.hf_dispatch and state.cp_size == dist.get_world_size(group)
    assert packed.get_active_cp_group() is state.cp_group is group
    lengths = (17, 30, 13)
    batch = batch_of(lengths)
    padded = torch.tensor([[17, 30, 13, -1000]])
    options = dict(device_mesh=mesh, is_thd=True, pad_id=3, num_chunks=1)
    attend = packed.make_magi_attn_func()
    by_documents = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
    by_documents["seq_lens_padded"] = padded
    tree, _ = AttnMaskSpec.prefix_tree([20, 18, 22], [[0, 1], [0, 2]])
    causal = AttnMaskSpec.causal(60)
    alone = {"input_ids": batch["input_ids"], "labels": batch["labels"]}
    alone["position_ids"] = torch.arange(60)
    restarting = {**alone, "position_ids": batch["position_ids"]}
    two = {name: value.view(2, 30) for name, value in alone.items()}
    for given, spec, is_thd in (
        (batch, AttnMaskSpec.varlen(lengths), True),
        (by_documents, AttnMaskSpec.varlen(lengths), True),
        ({**batch, "magi_attn_spec": tree}, tree, True),
        ({**batch, "magi_attn_spec": tree}, tree, False),
        (alone, causal, False),
        (batch, AttnMaskSpec.varlen(lengths), False),
        (restarting, AttnMaskSpec.varlen(lengths), False),
        *([(two, AttnMaskSpec.varlen([30, 30]), False)] if state.cp_size > 1 else []),
    ):
        context, local = state.prepare_llm_batch(HEADS, given, **{**options, "is_thd": is_thd})
        model = Model()
        with context():
            logits = model(local["input_ids"], local["position_ids"], attend)
        loss = loss_of(logits, local["labels"])
        loss.backward()
        whole = {name: given[name].reshape(-1) for name in alone}
        check_sums(group, loss, model, reference(whole, spec))
    assert state.prepare_vlm_batch(HEADS, batch)[1] is batch
    if dist.get_world_size() == dist.get_world_size(group):
        without_a_group(batch)
    packed.set_active_cp_group(None)


@pytest.fixture(autouse=True)
def nothing_active():
    packed.set_active_cp_group(None)
    packed.set_active_attn_spec(None)
    yield
    packed.set_active_cp_group(None)
    packed.set_active_attn_spec(None)


LENGTHS = [(1,), (2,), (3, 2), (17,), (17, 30, 13), (383,), (100, 1, 0, 282)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_one_process(lengths):
    packed_documents(None, lengths)


@over(1, 2, 4)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_ranks(group, lengths):
    packed_documents(group, lengths)


@over(1, 2, 4)
@pytest.mark.parametrize("is_of_calls", [False, True])
def test_windows(group, is_of_calls):
    packed_documents(group, (17, 30, 13), 4, is_of_calls)


@over(1, 2, 4)
def test_random_lengths(group, rng):
    packed_documents(group, [rng.randrange(1, 40) for _ in range(rng.randrange(1, 9))])


@over(1, 2, 4)
@pytest.mark.parametrize("is_called_with_plan", [False, True])
def test_prefix_trees(group, is_called_with_plan):
    prefix_tree(group, is_called_with_plan)


def test_prefix_tree_on_one_process():
    prefix_tree(None)


@over(3)
def test_other_batches(group):
    """Batches that are equally long on all ranks, where each rank would take its rows of its own:
    refused under plans that are new and that have run.
    """
    lengths = (17, 13)
    batch, spec = batch_of(lengths), AttnMaskSpec.varlen(lengths)
    sequence = {name: batch[name][None] for name in ("input_ids", "labels")}
    tree, ids = PrefixTree([20, 4, 6], [[0, 1], [0, 2]]), {"input_ids": batch["input_ids"]}
    for prepare, given in (
        (lambda b: packed.magi_prepare_packed_cp(HEADS, b, group), batch),
        (lambda b: packed.magi_prepare_batch(HEADS, b, group, spec=spec), sequence),
        (lambda b: packed.magi_prepare_prefix_tree(HEADS, b, tree, group), ids),
    ):
        for name in [name for name in ("input_ids", "labels") if name in given]:
            other = {**given, name: given[name] + (dist.get_rank(group) == 2)}
            pattern = r"ranks \[2\] of cp_group are given other samples than rank 0; allowed: the "
            refuses(lambda: prepare(other), ValueError, pattern)
            assert prepare(given)[0]["input_ids"].numel()


class TestSpecs:
    def test_causal_and_varlen(self):
        assert AttnMaskSpec.causal(9) == AttnMaskSpec([[0, 9]], [[0, 9]], ["causal"], 9)
        spec = AttnMaskSpec.varlen([3, 0, 4], causal=False)
        assert spec == AttnMaskSpec([[0, 3], [3, 7]], [[0, 3], [3, 7]], ["full"] * 2, 7)
        assert spec.fingerprint() == dataclasses.replace(spec).fingerprint()
        assert len({spec.fingerprint(), AttnMaskSpec.varlen([3, 4]).fingerprint()}) == 2
        assert hash(spec.fingerprint())

    @pytest.mark.parametrize("window", [(-2, 0), (3, -2), (3,)])
    def test_windows_that_are_none(self, window):
        with pytest.raises(ValueError, match=r"window_size(\[\d\])? is"):
            AttnMaskSpec.varlen([3, 4], window_size=window)

    def test_prefix_tree(self):
        spec, ranges = AttnMaskSpec.prefix_tree([4, 2, 3], [[0, 1], [0, 2]])
        assert spec.total_seqlen == 9
        assert ranges == [[[0, 4], [4, 6]], [[0, 4], [6, 9]]]
        shown = set(zip(map(tuple, spec.q_ranges), map(tuple, spec.k_ranges), spec.mask_types))
        assert shown == {
            ((0, 4), (0, 4), "causal"), ((4, 6), (0, 4), "full"), ((4, 6), (4, 6), "causal"),
            ((6, 9), (0, 4), "full"), ((6, 9), (6, 9), "causal"),
        }  # fmt: skip

    @pytest.mark.parametrize(
        "arguments, pattern",
        [
            (([3, 2], [[0, 2]]), r"sample_paths\[0\]\[1\] is 2; allowed: 0 to 1"),
            (([3, -2], [[0]]), r"node_lengths\[1\] is -2"),
            (([3, 2], [[0, 1, 0]]), r"sample_paths\[0\] holds node 0 twice"),
            (([3, 2], [[0, 1], [1]]), r"node 1 comes after nodes \[\] in sample_paths\[1\]"),
        ],
    )
    def test_what_is_no_tree(self, arguments, pattern):
        with pytest.raises(ValueError, match=pattern):
            AttnMaskSpec.prefix_tree(*arguments)


class TestPrefixTree:
    tree = PrefixTree([2, 1, 2, 3], [[0, 1], [0, 2]])

    def test_rows(self):
        ids = torch.tensor([10, 11, 12, 13, 14, 7, 7, 7])
        assert self.tree.position_ids.tolist() == [0, 1, 2, 2, 3, 0, 1, 2]
        assert self.tree.branches == 2
        labels = self.tree.labels(ids)
        assert torch.equal(labels, self.tree.labels(ids[None]))
        nothing = [-100, -100]
        assert labels.tolist() == [
            [11, -100], [12, 13], nothing, [14, -100], nothing, nothing, nothing, nothing
        ]  # fmt: skip
        weights = self.tree.loss_weights([1.0, torch.tensor([8.0, 2.0, 4.0, 5.0])])
        assert weights[:4].tolist() == [[3, 0], [1, 4], [0, 0], [5, 0]] and not weights[4:].any()
        assert self.tree.loss_weights().sum() == 5

    def test_errors(self):
        with pytest.raises(ValueError, match=r"input_ids has shape \[3\]; allowed: \[8\]"):
            self.tree.labels(torch.zeros(3))
        with pytest.raises(ValueError, match="sample_weights has 1 entries; allowed: 2"):
            self.tree.loss_weights([1.0])
        pattern = r"sample_weights\[0\] has shape \[2\]; allowed: \[3\]"
        with pytest.raises(ValueError, match=pattern):
            self.tree.loss_weights([torch.zeros(2), 1.0])
        with pytest.raises(ValueError, match=r"values has shape \[8\]; allowed: \[8, 2\]"):
            self.tree.of_samples(torch.zeros(8))
        with pytest.raises(ValueError, match=r"labels has shape \[8, 2\]; allowed: \[3\] and"):
            packed.branch_log_probs(torch.zeros(3, 5), self.tree.labels(torch.zeros(8)))


class TestAttentionFunction:
    """On one process; a batch's mask is the first of what is given, what is active, causal."""

    q, k, v = (torch.randn(2, 15, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))

    def wanted(self, spec):
        rows = (tensor.flatten(0, 1) for tensor in (self.q, self.k, self.v))
        return dense_attend(spec)(*rows).view(2, 15, 4, 8)

    def close(self, found, wanted):
        assert found.shape == wanted.shape and (found - wanted).abs().max() < 1e-12

    def test_masks(self):
        attend = packed.make_magi_attn_func()
        each = AttnMaskSpec.varlen([15, 15])
        tree, _ = AttnMaskSpec.prefix_tree([10, 5, 15], [[0, 1], [0, 2]])
        bounds = torch.tensor([0, 7, 30], dtype=torch.int32)
        call = (self.q, self.k, self.v)
        self.close(attend(*call), self.wanted(each))  # torch's
        self.close(attend(*call, magi_attn_spec=tree), self.wanted(tree))
        self.close(attend(*call, cu_seqlens=bounds), self.wanted(AttnMaskSpec.varlen([7, 23])))
        narrow = AttnMaskSpec.varlen([15, 15], window_size=(3, 0))
        self.close(attend(*call, window_size=(3, 0)), self.wanted(narrow))
        packed.set_active_attn_spec(tree)
        assert packed.get_active_attn_spec() is tree
        self.close(attend(*call), self.wanted(tree))
        self.close(attend(*call, magi_attn_spec=each), self.wanted(each))

    @pytest.mark.parametrize("rows", [1, 4, 15, 20])
    def test_the_diagonal_ends_with_the_last_rows(self, rows):
        """A decode step sees all keys; of more queries than keys the first see none."""
        q = torch.randn(2, rows, 4, 8, dtype=torch.float64, requires_grad=True)
        found = packed.make_magi_attn_func()(q, self.k, self.v)
        found.sum().backward()
        assert q.grad.isfinite().all()
        for batch in range(2):
            sides = q[batch].detach(), self.k[batch], self.v[batch]
            self.close(found[batch].detach(), attention(*sides, "causal"))

    @pytest.mark.parametrize("name", ["is_causal", "causal"])
    def test_what_is_not_causal_by_a_mask_of_the_call(self, name):
        both = AttnMaskSpec.varlen([15, 15], causal=False)
        call = self.q, self.k, self.v
        found = packed.make_magi_attn_func()(*call, magi_attn_spec=both, **{name: False})
        self.close(found, self.wanted(both))

    def test_layouts_and_scale(self):
        attend = packed.make_magi_attn_func(softmax_scale=0.2)
        q, k, v = self.q[0], self.k[0], self.v[0]
        heads = (tensor.transpose(0, 1) for tensor in (q, k, v))
        wanted = F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.2, enable_gqa=True)
        self.close(attend(q, k, v), wanted.transpose(0, 1))
        spec = AttnMaskSpec.causal(15)
        self.close(attend(q, k, v, magi_attn_spec=spec), wanted.transpose(0, 1))
        narrow = packed._plan_of_call((q, k, v[..., :6]), {"magi_attn_spec": spec}, (-1, -1))
        assert narrow.attention.local_shape.head_dim_v == 8  # which all backends take
        assert packed.heads_of(packed.Heads(4, 2, 8)) == (4, 2, 8, None)
        whole = torch.cat((q, k, v), 1)  # rows with a stride
        q, k, v = whole.split((4, 2, 2), 1)
        self.close(attend(q, k, v, magi_attn_spec=spec), wanted.transpose(0, 1))

    @pytest.mark.parametrize(
        "options, error, pattern",
        [
            ({"attention_mask": torch.ones(1)}, ValueError, "attention_mask is given"),
            ({"dropout": 0.1}, ValueError, "dropout is 0.1; allowed: 0"),
            ({"is_causal": False}, ValueError, "is_causal is False"),
            ({"attn_mask_type": "arbitrary"}, ValueError, "attn_mask_type is 'arbitrary'"),
            ({"core_attention_bias": 1}, TypeError, "unexpected keyword 'core_attention_bias'"),
            ({"cu_seqlens": torch.tensor([0, 29])}, ValueError, "has documents of 29 rows"),
            ({"cu_seqlens": torch.tensor([3, 30])}, ValueError, "allowed: bounds that grow from 0"),
            (
                {"cu_seqlens_q": torch.tensor([0, 30]), "cu_seqlens_kv": torch.tensor([0, 15, 30])},
                ValueError, "cu_seqlens_kv is not cu_seqlens_q",
            ),
            (
                {"magi_attn_spec": AttnMaskSpec.causal(30), "window_size": (8, 0)},
                ValueError, r"window_size is \(8, 0\), but magi_attn_spec shows keys 29 rows",
            ),
        ],
        ids=str,
    )  # fmt: skip
    def test_refusals(self, options, error, pattern):
        with pytest.raises(error, match=pattern):
            packed.make_magi_attn_func()(self.q, self.k, self.v, **options)


class TestBatches:
    batch = batch_of((5, 7))

    @pytest.mark.parametrize(
        "changes, pattern",
        [
            ({"labels": torch.zeros(11)}, r"labels has shape \[11\]; allowed: \[12\]"),
            ({"cu_seqlens": torch.tensor([0, 11])}, "cu_seqlens has documents of 11 rows"),
            ({"cu_seqlens": None}, "the batch has no cu_seqlens"),
            ({"input_ids": None}, "the batch has .*cu_seqlens; allowed: input_ids among them"),
        ],
    )
    def test_packed(self, changes, pattern):
        with pytest.raises(ValueError, match=pattern):
            packed.magi_prepare_packed_cp(HEADS, {**self.batch, **changes}, None)

    def test_of_transformers(self):
        ids = torch.zeros(2, 6, dtype=torch.int64)
        with pytest.raises(ValueError, match=r"input_ids has shape \[2, 6\]; allowed: \[1, rows\]"):
            packed.magi_prepare_batch(HEADS, {"input_ids": ids}, None)
        mask = torch.tensor([[1, 1, 1, 0, 0, 1]])
        with pytest.raises(ValueError, match="attention_mask hides 2 rows"):
            packed.magi_prepare_batch(HEADS, {"input_ids": ids[:1], "attention_mask": mask}, None)
        for changes, pattern in (
            ({"attention_mask": torch.tensor([[1, 1, 1, 2, 2, 1]])}, "a document in two places"),
            ({"completion_mask": ids[:1]}, "the batch has completion_mask; allowed: labels of"),
            ({"position_ids": torch.tensor([[0, 1, 2, 5, 6, 7]])}, "numbers before row 3"),
        ):
            with pytest.raises(ValueError, match=pattern):
                packed.magi_prepare_batch(HEADS, {"input_ids": ids[:1], **changes}, None)
        with pytest.raises(ValueError, match="input_ids has 6 rows; allowed: 7"):
            packed.magi_prepare_batch(
                HEADS, {"input_ids": ids[:1]}, None, spec=AttnMaskSpec.causal(7)
            )
        with pytest.raises(ValueError, match="object has no num_attention_heads"):
            packed.magi_prepare_batch(object(), {"input_ids": ids[:1]}, None)

    @pytest.mark.parametrize(
        "name, value",
        [
            ("labels", torch.zeros(1, 8)),
            ("loss_mask", torch.ones(1, 8)),
            ("position_ids", torch.arange(8)),
            ("cu_seqlens", torch.tensor([0, 4, 8])),
            ("attention_mask", torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]])),
            ("completion_mask", torch.ones(1, 8)),
        ],
    )
    def test_of_a_tree(self, name, value):
        batch = {"input_ids": torch.zeros(1, 8, dtype=torch.int64), name: value}
        with pytest.raises(ValueError, match=f"^(the batch has )?{name}( numbers documents)?; all"):
            packed.magi_prepare_prefix_tree(HEADS, batch, TestPrefixTree.tree, None)

    def test_state_that_is_off(self):
        state = packed.setup_magi({"model": {"attn_implementation": "sdpa"}}, None)
        assert state == MagiState() and not state.hf_dispatch
        assert state.prepare_llm_batch(None, self.batch)[1] is self.batch
        assert packed.is_magi_available() and packed.get_cp_group(None) is None
        on = MagiState(True, True)
        with pytest.raises(ValueError, match="num_chunks is 2; allowed: 1"):
            on.prepare_llm_batch(HEADS, self.batch, num_chunks=2)
