# SPDX-License-Identifier: Apache-2.0
"""A small model of one's own with packed sequences and prefix trees, alone and over ranks, against
torch's attention under dense masks, in float64.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F

import dense
from magi_attention.integrations import packed
from magi_attention.integrations.packed import AttnMaskSpec, PrefixTree
from ranks import refuses

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
    ids = torch.randint(VOCABULARY, (rows,), generator=torch.Generator().manual_seed(rows))
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
    if group is not None:
        for tensor in (total, *found):
            dist.all_reduce(tensor, group=group)
    wanted_loss, wanted_gradients = wanted
    assert abs(total - wanted_loss) <= 1e-9 * max(1.0, abs(wanted_loss)), (total, wanted_loss)
    for gradient, other in zip(found, wanted_gradients):
        assert (gradient - other).abs().max() <= 1e-9 * max(1.0, other.abs().max())


def packed_documents(group, lengths, window=-1) -> None:
    """magi_prepare_packed_cp and the attention function, against a dense mask."""
    batch = batch_of(lengths)
    spec = AttnMaskSpec.varlen(lengths, window_size=(window, 0))
    model = Model()
    packed.set_active_cp_group(group)
    local, _ = packed.magi_prepare_packed_cp(HEADS, batch, group, spec=spec)
    attend = packed.make_magi_attn_func()
    logits = model(local["input_ids"], local["position_ids"], attend)
    loss = loss_of(logits, local["labels"])
    loss.backward()
    check_sums(group, loss, model, reference(batch, spec))
    packed.set_active_cp_group(None)


def without_a_group(batch) -> None:
    """None is refused in one of several processes, by whatever would make a plan or attend."""
    from torch.distributed.device_mesh import DeviceMesh

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


def layers_of_two_masks(group) -> None:
    """A spec with a call is another mask on the placement of the active plan."""
    lengths = (17, 30, 13)
    batch = batch_of(lengths)
    packed.set_active_cp_group(group)
    local, _ = packed.magi_prepare_packed_cp(HEADS, batch, group)
    spec = AttnMaskSpec.varlen(lengths, window_size=(4, 0))
    attend = packed.make_magi_attn_func()

    def narrow(q, k, v):
        return attend(q, k, v, magi_attn_spec=spec, window_size=(4, 0))

    model = Model()
    loss = loss_of(model(local["input_ids"], local["position_ids"], narrow), local["labels"])
    loss.backward()
    check_sums(group, loss, model, reference(batch, spec))
    packed.set_active_cp_group(None)


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
        of_token = torch.as_tensor(weight, dtype=torch.float64).expand(len(sample))[1:]
        total = total - (found * of_token).sum()
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
    loss.backward()
    check_sums(group, loss, model, wanted)
    found = packed.branch_log_probs(logits, local["labels"]).detach()[0]
    whole = packed.bound_of(plan).undispatch(found)[: tree.total_seqlen]
    for one, other in zip(tree.of_samples(whole), wanted_log_probs):
        assert (one - other).abs().max() < 1e-9
    packed.set_active_cp_group(None)


def on_default_device(group) -> None:
    """Documents and a prefix tree on torch's default device, attention in bfloat16, against the
    CPU.
    """
    device = torch.get_default_device()
    lengths = (17, 100, 33, 150)
    tree = PrefixTree((40, 60, 70, 50, 80), ((0, 1), (0, 2, 3), (0, 2, 4)))
    with torch.device("cpu"):
        batch = batch_of(lengths)
        ids = torch.randint(VOCABULARY, (300,), generator=torch.Generator().manual_seed(5))
        wanted = reference(batch, AttnMaskSpec.varlen(lengths))
        of_samples, _ = samples_alone(tree, ids, (1.0, 2.0, 3.0))
        documents, samples = Model(), Model()
    attend = packed.make_magi_attn_func()

    def call(q, k, v):
        return attend(q.bfloat16(), k.bfloat16(), v.bfloat16()).double()

    packed.set_active_cp_group(group)
    moved = {name: tensor.to(device) for name, tensor in batch.items()}
    local, _ = packed.magi_prepare_packed_cp(HEADS, moved, group)
    logits = documents.to(device)(local["input_ids"], local["position_ids"], call)
    loss = loss_of(logits, local["labels"])
    loss.backward()
    near(group, loss, documents, wanted)
    local, _ = packed.magi_prepare_prefix_tree(
        HEADS, {"input_ids": ids.to(device)}, tree, group, sample_weights=(1.0, 2.0, 3.0)
    )
    logits = samples.to(device)(local["input_ids"], local["position_ids"], call)
    loss = packed.branch_loss(logits, local["labels"], local["loss_weights"])
    loss.backward()
    near(group, loss, samples, of_samples)
    packed.set_active_cp_group(None)


def near(group, loss, model, wanted) -> None:
    """As check_sums, within the rounding of bfloat16."""
    total, found = loss.detach().clone(), gradients(model)
    for tensor in (total, *found):
        dist.all_reduce(tensor, group=group)
    assert abs(total.cpu() - wanted[0]) < 1e-2 * abs(wanted[0])
    for gradient, other in zip(found, wanted[1]):
        assert (gradient.cpu() - other).abs().max() < 3e-2 * other.abs().max()


def state_of_a_training(group) -> None:
    """setup_magi and prepare_llm_batch of a model of one's own, over a device mesh."""
    from torch.distributed.device_mesh import DeviceMesh

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
