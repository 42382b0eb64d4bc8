# SPDX-License-Identifier: Apache-2.0
"""What ranks on two hosts do, half of them on each; a program for ranks.launch or torchrun, whose
arguments are "cpu" or "cuda", and cases with their numbers, as exact:1. Prints lines of JSON.

On GPUs NCCL takes the halves for two hosts, and has nothing but sockets between them. The hosts
share a GPU where there is one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from magi_attention import Plan, attention, masks
from magi_attention.errors import CommError

ROWS = 192
HEADS = 4, 4, 16  # of queries, of keys, elements
IS_ON_GPUS = sys.argv[1:2] == ["cuda"]
DTYPE, ERROR = (torch.bfloat16, 0.02) if IS_ON_GPUS else (torch.float64, 1e-12)  # of the largest
PLACEMENTS = "auto", "thorough", "affinity", "zigzag", "min_heap", "contiguous"
WORK = "keys", "queries", "heads", "auto"


def all_masks() -> dict[str, masks.Mask]:
    documents = [0, 10, 75, 76, 150, ROWS]
    return {
        "full": masks.from_document_ids([0] * ROWS, causal=False),
        "causal": masks.from_document_ids([0] * ROWS),
        "documents": masks.from_cu_seqlens(documents, causal=False),
        "causal documents": masks.from_cu_seqlens(documents),
        "window": masks.from_window(ROWS, 40, 0),
        "prefixes": masks.from_prefix_lm([0, 90, ROWS], [30, 20]),
        "tree": masks.from_tree([-1, 0, 0, 1], [60, 50, 42, 40]),
        "video": masks.from_video(4, 6, 8, window=(3, 3, None))[0],
    }


def _planned(mask: masks.Mask, placement: str, work: str, heads=HEADS) -> Plan:
    size = dist.get_world_size()
    return Plan.from_mask(
        mask, cp_size=size, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=heads[2],
        placement=placement, work=work, devices_per_node=size // 2,
    )  # fmt: skip


def _leaves(rows: int, heads=HEADS) -> list[torch.Tensor]:
    """q, k, v of the sequence and the gradient of out, the same on all ranks."""
    torch.manual_seed(rows)
    counts = heads[0], heads[1], heads[1], heads[0]
    return [torch.randn(rows, count, heads[2]).to(DTYPE) for count in counts]


def _of_one_process(mask: masks.Mask) -> list[torch.Tensor]:
    *qkv, weights = _leaves(ROWS)
    qkv = [x.requires_grad_() for x in qkv]
    out = attention(*qkv, mask)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), qkv)]


def _over_hosts(plan: Plan) -> list[torch.Tensor]:
    bound = plan.bind(dist.group.WORLD)
    *qkv, weights = _leaves(ROWS)
    qkv = [x.requires_grad_() for x in qkv]
    out, _ = bound.calc_attn(*map(bound.dispatch, qkv))
    gradients = torch.autograd.grad((out * bound.dispatch(weights)).sum(), qkv)
    return [bound.undispatch(out.detach()), *gradients]


def exact(every: int) -> None:
    """Every so manieth plan against one process."""
    cases, wanted = list(itertools.product(all_masks().items(), PLACEMENTS, WORK)), {}
    wrong, count = [], 0
    for (name, mask), placement, work in cases[::every]:
        if name not in wanted:
            wanted[name] = _of_one_process(mask)
        found = _over_hosts(_planned(mask, placement, work))
        count += 1
        if not all(map(_is_close, found, wanted[name])):
            wrong.append([name, placement, work])
    print(json.dumps({"wrong": wrong, "of": count}), flush=True)


def _is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found - wanted).abs().max() <= ERROR * wanted.abs().max())


def _rows_across(mask: masks.Mask, plan: Plan, rank: int) -> int:
    """Rows that a rank's keys take to the other host, once each: by the mask alone."""
    sees, size = masks.to_matrix(mask).cpu(), plan.cp_size
    owned = [torch.zeros(mask.rows_q, dtype=torch.bool, device="cpu") for _ in range(size)]
    for owner, rows in enumerate(owned):
        for begin, end in plan.ranges_of(owner).to_naive_ranges():
            rows[begin:end] = True
    half = size // 2
    others = range(half, size) if rank < half else range(half)
    wanted = torch.stack([sees[owned[other]].any(0) for other in others]).any(0)
    return int((wanted & owned[rank]).sum())


def cross(rows: int) -> None:
    """Bytes that went to the other host, by the transport's count, and what rows come to."""
    heads, counted, planned = (8, 4, 64), 0, 0

    def bytes_across() -> int:
        half, to_peer = plan.cp_size // 2, bound.communicator.counters()["bytes_to_peer"]
        return sum(to_peer[half:] if rank < half else to_peer[:half])

    given = masks.from_cu_seqlens([0, rows // 3, rows]), masks.from_window(rows, rows // 4, 0)
    for mask, placement in itertools.product(given, ("auto", "zigzag")):
        plan = _planned(mask, placement, "keys", heads)
        bound, rank = plan.bind(dist.group.WORLD), dist.get_rank()
        before = bytes_across()  # plans of a group may share a communicator
        *qkv, weights = map(bound.dispatch, _leaves(rows, heads))
        qkv = [x.detach().requires_grad_() for x in qkv]
        (bound.calc_attn(*qkv)[0] * weights).sum().backward()
        counted += bytes_across() - before
        # Keys and values in the forward, and in the backward again; their gradients come back.
        # From GPUs gradients come back in float32.
        parts = 2 * DTYPE.itemsize + max(DTYPE.itemsize, 4)
        planned += _rows_across(mask, plan, rank) * 2 * heads[1] * heads[2] * parts
    print(json.dumps({"counted": counted, "planned": planned}), flush=True)


def lost(victim: int, milliseconds: int) -> None:
    """Calls until a rank is ended from outside, and what the others are told."""
    rank, heads = dist.get_rank(), (4, 2, 64)
    bound = _planned(all_masks()["causal documents"], "auto", "keys", heads).bind(dist.group.WORLD)
    qkv = [bound.dispatch(x).requires_grad_() for x in _leaves(ROWS, heads)[:3]]

    def call() -> None:
        torch.autograd.grad(bound.calc_attn(*qkv)[0].sum(), qkv)
        if IS_ON_GPUS:
            torch.cuda.synchronize()

    call()
    dist.all_reduce(torch.zeros(1, device="cpu"))
    end = time.monotonic() + milliseconds / 1000
    if rank == victim:
        signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)  # whose signal ends the process
    try:
        while True:
            call()
    except CommError as error:
        told = {"rank": rank, "seconds": time.monotonic() - end, "text": str(error)}
        print(json.dumps(told | {"transport": bound.communicator.backend}), flush=True)
    if rank == 0:
        time.sleep(0.5)  # it hosts the store, which tells the others who has ended first
    os._exit(0)


if __name__ == "__main__":
    if IS_ON_GPUS:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        os.environ["NCCL_HOSTID"] = f"host{2 * rank // size}"
        os.environ |= dict.fromkeys(
            ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"), "1"
        )
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.set_default_device("cuda")
    dist.init_process_group("cpu:gloo,cuda:nccl" if IS_ON_GPUS else "gloo")
    for each in sys.argv[2:]:
        case, *numbers = each.split(":")
        globals()[case](*map(int, numbers))
    dist.destroy_process_group()
