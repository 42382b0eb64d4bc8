# SPDX-License-Identifier: Apache-2.0
"""Sparse attention over GPUs: torchrun --nproc-per-node 2 sparse_ranks_bench.py --out FILE

bf16, head dim 128, 32,768 rows under a causal plan. `lists`: 2,048 random keys before each query,
128:1 heads. `blocks`: 32 random blocks of 128 keys before each block of 128 queries, for each of 8
kv heads, 64:8 heads. share: the time of forward and backward of the kernels on keys that are there
already, over that of calc_sparse_attn; medians over rounds of what the slowest rank takes, sides in
random order.
"""

import argparse
import json
import os
import pathlib
import random
import statistics

import torch
import torch.distributed as dist
from sparse_bench import milliseconds

from magi_attention import Plan, masks
from magi_attention.functional import block_sparse_attn_func, flex_flash_attn_func

ROWS, DIM, BLOCK, ENTRIES, BLOCKS = 32768, 128, 128, 2048, 32
HEADS = {"lists": (128, 1), "blocks": (64, 8)}
BURST, ALLOWED_ERROR = 3, 0.01


def chosen(name: str, own: torch.Tensor) -> torch.Tensor:
    """Lists of the rows of a rank, or the mask of its blocks."""
    heads = HEADS[name][1]
    if name == "lists":
        share = torch.rand(len(own), heads, ENTRIES, device="cuda")
        return (share * (own.view(-1, 1, 1) + 1)).int().minimum(own.view(-1, 1, 1).int())
    number, num_blocks = own[::BLOCK] // BLOCK, ROWS // BLOCK
    scores = torch.rand(heads, len(number), num_blocks, device="cuda")
    is_before = torch.arange(num_blocks, device="cuda") < number.view(-1, 1)
    best = scores.masked_fill(~is_before, -1.0).topk(BLOCKS, dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(2, best, True) & is_before


class Case:
    """Two sides of one problem: calc_sparse_attn, and its kernels on keys that are there."""

    def __init__(self, name: str, group: dist.ProcessGroup, transport: str | None) -> None:
        heads_q, heads_kv = HEADS[name]
        plan = Plan.from_mask(
            masks.from_cu_seqlens([0, ROWS]), cp_size=group.size(), num_heads_q=heads_q,
            num_heads_kv=heads_kv, head_dim=DIM,
        )  # fmt: skip
        self._bound = bound = plan.bind(group, transport=transport)
        size = 1 if name == "lists" else BLOCK
        self._entries = chosen(
            name, bound.rows.position_ids_on(torch.device("cuda", torch.cuda.current_device()))
        )
        self._size, self._is_mask = size, name == "blocks"
        shapes = [(bound.local_rows, heads, DIM) for heads in (heads_q, heads_kv, heads_kv)]
        made = [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes]
        self._leaves = [x.requires_grad_() for x in made]
        self._upstream = torch.randn_like(made[0])
        there = [bound.gather_needed(x.detach()) for x in made[1:]]
        blocks = bound.needed_keys.blocks(bound.local_rows, size, there[0].device)
        if blocks.rows is not None:
            raise SystemExit("blocks of keys do not lie in the plan's chunks")
        self._there = [self._leaves[0], *(x.requires_grad_() for x in there)]
        self._local = (
            torch.nn.functional.pad(self._entries, (0, 1)).index_select(2, blocks.ids)
            if self._is_mask
            else blocks.places[self._entries + 2]
        )
        self.sides = {"ours": self.ours, "alone": self.alone}

    def ours(self):
        given = {"block_mask" if self._is_mask else "index_sparse_indices": self._entries}
        sizes = {"q_block_size": self._size, "sparse_k_block_size": self._size}
        out, _ = self._bound.calc_sparse_attn(*self._leaves, **given, **sizes)
        return out, torch.autograd.grad(out, self._leaves, self._upstream)

    def alone(self):
        if self._is_mask:
            sizes = {"q_block_size": self._size, "k_block_size": self._size}
            out, _ = block_sparse_attn_func(*self._there, self._local, **sizes)
        else:
            out, _ = flex_flash_attn_func(*self._there, index_sparse_indices=self._local)
        return out, torch.autograd.grad(out, self._there, self._upstream)

    def error(self) -> float:
        """Of out and dq, relative to their norms, the larger."""
        (out, (dq, *_)), (wanted, (exact, *_)) = self.ours(), self.alone()
        pairs = (out, wanted), (dq, exact)
        return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)


def slowest(value: float) -> float:
    found = torch.tensor(value, device="cuda")
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def share_of(name: str, options) -> float:
    case = Case(name, dist.group.WORLD, options.transport)
    error = slowest(case.error())
    if not error < ALLOWED_ERROR:
        raise SystemExit(f"{name}: the sides differ by {error:.2g}; allowed: {ALLOWED_ERROR}")
    generator, times = random.Random(0), {side: [] for side in case.sides}
    for round_idx in range(options.rounds + 1):  # one to warm up
        for side in generator.sample(sorted(times), len(times)):
            dist.barrier()
            took = slowest(milliseconds(case.sides[side], BURST))
            if round_idx > 0:
                times[side].append(took)
    found = {side: statistics.median(milli) for side, milli in times.items()}
    if dist.get_rank() == 0:
        print(f"{name}: {found} ms, error {error:.2g}", flush=True)
    return found["alone"] / found["ours"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--transport", help="None: chosen")
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    rows = [
        {"name": f"sparse2.{name}.share", "value": share_of(name, options), "unit": "ratio"}
        for name in HEADS
    ]
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
