# SPDX-License-Identifier: Apache-2.0
"""Cases about what is sent, on torch's default device."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

import test_packed as models
from magi_attention import api
from magi_attention._native import allocator
from magi_attention._native.library import check, lib, use_allocator
from magi_attention.common import AttnRanges
from magi_attention.errors import CommError
from magi_attention.integrations import packed
from magi_attention.integrations.packed import AttnMaskSpec, PrefixTree
from magi_attention.plan_memory import memory_over_nvlink
from on_gpu import capture
from pipeline_cases import Case, pipeline
from ranks import sum_over
from test_group_collectives import COLLECTIVES


class Exchanges:
    """Tests of a module whose fixture `run` calls a function on all of its ranks."""

    @pytest.mark.parametrize("degree", [0, 1, 4, None])
    def test_attention(self, run, degree):
        case = Case(mask="four_types", rows=300, head_dim=64, degree=degree, dtype="bfloat16")
        run(pipeline, case)

    def test_one_kv_head_in_stages_by_rows(self, run):
        case = Case(mask="full", rows=300, heads=(4, 1), head_dim=128, degree=4, dtype="float16")
        run(pipeline, case)

    def test_bytes_are_the_plans(self, run):
        run(bytes_are_the_plans, 512)

    @pytest.mark.parametrize("seed", range(2))
    @COLLECTIVES
    def test_group_collectives(self, run, case, seed):
        run(case, seed)


def causal_plan(group, rows: int, degree: int = 1, work: str | None = None) -> api.Plan:
    ranges = AttnRanges.from_ranges([(0, rows)])
    return api.Plan.from_ranges(
        ranges, ranges, "causal", rows, cp_size=dist.get_world_size(group), num_heads_q=4,
        num_heads_kv=2, head_dim=64,
        config=api.DistAttnConfig(overlap_config=api.OverlapConfig(degree=degree), work=work),
    )  # fmt: skip


def leaves(bound) -> list[torch.Tensor]:
    """q, k, v of one rank."""
    shapes = ((bound.local_rows, heads, 64) for heads in (4, 2, 2))
    return [torch.randn(shape, dtype=torch.bfloat16).requires_grad_() for shape in shapes]


def bytes_are_the_plans(group, rows: int) -> None:
    """Forward moves what the plan says, all ranks together; backward that and float32 partials."""
    plan = causal_plan(group, rows)
    bound = plan.bind(group)

    def sent(name: str = "bytes_to_peer") -> int:
        """Of the communicator, which may have served other plans."""
        total = torch.tensor(bound.communicator.counters()[name]).sum()
        dist.all_reduce(total, group=group)
        return total.item()

    bytes_before, size = sent(), dist.get_world_size(group)
    casts, reduces = sent("casts"), sent("reduces")
    out, _ = bound.calc_attn(*leaves(bound))
    assert sent() - bytes_before == plan.report.total_bytes > 0
    assert sent("casts") - casts == size * (plan.report.num_stages - 1)
    out.sum().backward()
    assert sent() - bytes_before == 4 * plan.report.total_bytes
    assert sent("reduces") - reduces == size * (plan.report.num_stages - 1)


def window_is_reported(group, rows: int) -> None:
    """What a large layer takes outside of torch, beyond a small one, is what its plan says. Windows
    of a group never shrink, so the group is one that nothing else ran on.
    """
    own_group = dist.new_group(dist.get_process_group_ranks(group))

    def run(count: int) -> tuple[int, int]:
        plan = causal_plan(own_group, count * dist.get_world_size(own_group), degree=0)
        bound = plan.bind(own_group, transport="nvlink")
        qkv = leaves(bound)
        torch.autograd.grad(bound.calc_attn(*qkv)[0].sum(), qkv)
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        taken = total - free - torch.cuda.memory_reserved()
        return memory_over_nvlink(plan)[bound.rank].window, taken

    (small, before), (large, after) = run(64), run(rows)
    slack = 16 << 20  # what kernels that ran for the first time take
    assert abs((after - before) - (large - small)) <= slack, (after - before, large, small)


def memory_is_torchs(group, rows: int) -> None:
    """The rows that a call receives over nccl lie in memory of torch's caching allocator, all of
    which is given back; attention that leaves other multiprocessors to exchanges gives the same
    bits.
    """
    plan, rank = causal_plan(group, rows), dist.get_rank(group)
    bound = plan.bind(group, transport="nccl")
    qkv = leaves(bound)
    received = plan.report.remote_rows[rank] * 2 * (64 + 64) * 2  # heads, k and v, bytes
    sizes = []

    def recorded(size, stream):
        sizes.append(size)
        return allocator.raw_allocate(size, stream)

    use_allocator(recorded, allocator.raw_release, allocator.current_device)
    try:
        out, _ = bound.calc_attn(*qkv)
        torch.autograd.grad(out.sum(), qkv)  # what is kept for later calls is there from now on
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        sizes.clear()
        out, _ = bound.calc_attn(*qkv)
        assert sum(sizes) >= received > 0
        assert torch.cuda.max_memory_allocated() - before >= received
        torch.autograd.grad(out.sum(), qkv)
        del out
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before
    finally:
        use_allocator(allocator.raw_allocate, allocator.raw_release, allocator.current_device)
    other = plan.bind(group, exchange_sms=0, transport="nccl")
    assert torch.equal(other.calc_attn(*qkv)[0], bound.calc_attn(*qkv)[0])


def is_carried_by(group, transport: str, backend: str) -> None:
    """What the group's communicator is, asked for by argument; plans share that of NCCL."""
    plan = causal_plan(group, 256)
    one, two = (plan.bind(group, transport=transport) for _ in range(2))
    assert one.communicator.backend == two.communicator.backend == backend
    assert (one.communicator is two.communicator) == (backend == "nccl")


def captured_attention_is_replayed(group, rows: int) -> None:
    """A captured forward moves and attends to what its inputs hold when it is replayed."""
    plan = causal_plan(group, rows)
    bound = plan.bind(group, transport="nccl")
    with torch.no_grad():
        q, k, v = leaves(bound)
        graph, (out, _) = capture(lambda: bound.calc_attn(q, k, v), group)
        for _ in range(3):
            for tensor in (q, k, v):
                tensor.normal_()
            wanted, _ = bound.calc_attn(q, k, v)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, wanted)
        del graph


def aborted_group_is_made_anew(group, rows: int, transport: str) -> None:
    """After an abort every rank gets an error, and a plan that is bound anew runs."""
    plan, rank = causal_plan(group, rows), dist.get_rank(group)
    bound = plan.bind(group, transport=transport)
    bound.calc_attn(*leaves(bound))
    torch.cuda.synchronize()
    dist.barrier(group)
    if rank == 0:
        check(lib.magi_communicator_abort(bound.communicator.address, b"a reason"))
    deadline = time.monotonic() + 10
    message = ""
    while not message and time.monotonic() < deadline:
        try:
            if transport == "nvlink" and rank > 0:  # is told where it waits
                bound.calc_attn(*leaves(bound))
                torch.cuda.synchronize()
            bound.communicator.check()
            time.sleep(0.01)
        except CommError as error:
            message = str(error)
    if transport == "nvlink" and rank > 0:
        assert "rank 0 left the group" in message, message
    else:
        assert message == "rank 0 aborted: a reason"
    with pytest.raises(CommError, match="rank 0"):
        bound.calc_attn(*leaves(bound))
    dist.barrier(group)
    again = plan.bind(group, transport=transport)
    assert again.communicator is not bound.communicator
    again.calc_attn(*leaves(again))
    torch.cuda.synchronize()


def killed_rank_is_named(group, rows: int, transport: str) -> None:
    """The last rank dies; every other one is told within 2 s and says who it was."""
    plan, rank, size = causal_plan(group, rows), dist.get_rank(group), dist.get_world_size(group)
    bound = plan.bind(group, transport=transport)
    bound.calc_attn(*leaves(bound))
    torch.cuda.synchronize()
    dist.barrier(group)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        bound.calc_attn(*leaves(bound))  # waits on the GPU for rows that never come
        torch.cuda.synchronize()
        while time.monotonic() < begin + 10:
            bound.communicator.check()
            time.sleep(0.01)
    except CommError as error:
        assert f"rank {size - 1} ended" in str(error), error
        assert time.monotonic() - begin < 2.5
        return
    raise AssertionError("no error within 10 s")


def a_captured_call_follows_new_data(group, rows: int, work: str | None = None) -> None:
    """Forward and backward over nvlink in one graph, which is replayed between eager calls."""
    bound = causal_plan(group, rows, 0, work).bind(group, transport="nvlink")
    qkv = leaves(bound)
    dout = torch.randn_like(qkv[0])

    def step() -> list[torch.Tensor]:
        out, _ = bound.calc_attn(*qkv)
        return [out, *torch.autograd.grad(out, qkv, dout)]

    graph, captured = capture(step, group)
    for _ in range(5):
        with torch.no_grad():
            for tensor in (*qkv, dout):
                tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        found = [t.clone() for t in captured]
        for name, a, b in zip(("out", "dq", "dk", "dv"), found, step()):
            # dq is summed in any order
            same = torch.allclose(a, b, rtol=0.02, atol=0.02) if name == "dq" else torch.equal(a, b)
            assert same, name
    bound.communicator.check()


def packed_batches(group) -> None:
    """Documents and a prefix tree on torch's default device, attention in bfloat16, against the
    CPU.
    """
    device = torch.get_default_device()
    lengths = (17, 100, 33, 150)
    tree = PrefixTree((40, 60, 70, 50, 80), ((0, 1), (0, 2, 3), (0, 2, 4)))
    with torch.device("cpu"):
        batch = models.batch_of(lengths)
        ids = torch.randint(models.VOCABULARY, (300,), generator=torch.Generator().manual_seed(5))
        wanted = models.reference(batch, AttnMaskSpec.varlen(lengths))
        of_samples, _ = models.samples_alone(tree, ids, (1.0, 2.0, 3.0))
        documents, samples = models.Model(), models.Model()
    attend = packed.make_magi_attn_func()

    def call(q, k, v):
        return attend(q.bfloat16(), k.bfloat16(), v.bfloat16()).double()

    packed.set_active_cp_group(group)
    moved = {name: tensor.to(device) for name, tensor in batch.items()}
    local, _ = packed.magi_prepare_packed_cp(models.HEADS, moved, group)
    logits = documents.to(device)(local["input_ids"], local["position_ids"], call)
    loss = models.loss_of(logits, local["labels"])
    loss.backward()
    near(group, loss, documents, wanted)
    local, _ = packed.magi_prepare_prefix_tree(
        models.HEADS, {"input_ids": ids.to(device)}, tree, group, sample_weights=(1.0, 2.0, 3.0)
    )
    logits = samples.to(device)(local["input_ids"], local["position_ids"], call)
    loss = packed.branch_loss(logits, local["labels"], local["loss_weights"])
    loss.backward()
    near(group, loss, samples, of_samples)
    packed.set_active_cp_group(None)


def near(group, loss, model, wanted) -> None:
    """As check_sums, within the rounding of bfloat16."""
    total, found = loss.detach().clone(), models.gradients(model)
    sum_over(group, total, *found)
    assert abs(total.cpu() - wanted[0]) < 1e-2 * abs(wanted[0])
    for gradient, other in zip(found, wanted[1]):
        assert (gradient.cpu() - other).abs().max() < 3e-2 * other.abs().max()
