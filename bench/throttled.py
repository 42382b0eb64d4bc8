#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans between hosts of slow networks, run with counted times:

  torchrun --nproc-per-node 4 bench/throttled.py --per-host 2 --out FILE

Ranks run a forward and a backward with the overlap degree and the placement that a plan chooses
(auto), with other degrees and with other placements. Steps and exchanges are those of the library,
over gloo; times are counted and slept. A rank's counted GPU is busy with an attention call as long
as its pairs take at the rate of an H200, while the host goes on, as with a GPU; rows go to others
once the link has carried them and those before them. A plan knows these rates. All takes so many
times as long that a step of auto is predicted to take `--seconds`, beside which the processes' own
time counts little. Merging is not counted. Rows have 32:8 heads of 128 in 1/64 of the elements. For
H hosts of N ranks and a network of R GB/s for each rank, means over masks:

  hosts.throttled.HxN.R.over_best     time of a step with auto over that of the fastest choice
  hosts.throttled.HxN.R.over_planned  the same over what the plan predicts
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

import torch
import torch.distributed as dist

from attention_masks import DATA, area, documents, prefix_tree
from magi_attention import Plan, backends, masks
from magi_attention._native.tensors import bytes_at
from magi_attention._native.vtable import CAST, Communicator
from magi_attention.comm.process_group import ProcessGroupTransport
from magi_attention.plan import BoundPlan

HEADS = 32, 8, 2  # of queries, of keys, elements
SHARE = 1 / 64  # of the elements of a head of 128
HEADER_BYTES = 40  # from each rank to each; headers go at once
# Of an H200 and its links; docs/calibration.md has their names.
RATES = {
    "flops_per_second": 6e14, "backward_flops_per_second": 5.2e14, "bytes_per_second": 2.75e11,
    "memory_bytes_per_second": 3.6e12,
}  # fmt: skip
DELAYS = {
    "seconds_per_transfer": 2e-6, "network_seconds_per_transfer": 5e-6, "seconds_per_launch": 5e-6,
}  # fmt: skip
MASKS = {
    "full": lambda rows: masks.from_window(rows, -1, -1),
    "causal": lambda rows: masks.from_window(rows, -1, 0),
    "packed": lambda rows: masks.from_cu_seqlens([0, *accumulate(documents(DATA, rows, 0))]),
    "window": lambda rows: masks.from_window(rows, rows // 8 - 1, 0),
    "tree": lambda rows: masks.from_tree(*zip(*prefix_tree(rows))),
}
CHOICES = [
    {}, *({"overlap": degree} for degree in (0, 1, 2, 4, 8)),
    *({"placement": name} for name in ("zigzag", "contiguous", "min_heap", "thorough")),
]  # fmt: skip


class Machine:
    """A rank's counted GPU and links, which the host does not wait for, `slower` times as slow."""

    def __init__(self, per_host: int) -> None:
        self.per_host, self.slower, self.costs = per_host, 1.0, {}
        # Each does one thing after the other, as a stream does: attention, exchanges.
        self._attends, self._exchanges = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._last = self._attends.submit(int)
        self._awaited: dict[int, Future] = {}  # keys of stages

    def use(self, rate: float, path: pathlib.Path) -> None:
        """Sets bytes per second of the network, also of plans, by a cost file."""
        rates = {**RATES, "network_bytes_per_second": rate}
        self.costs = {name: value * SHARE for name, value in rates.items()} | DELAYS
        named = {"format": "magi cost", "version": 1, "machine": "counted sleeps"}
        path.write_text(json.dumps(named | self.costs))
        os.environ["MAGI_ATTENTION_COST_FILE"] = str(path)

    def attend(self, flops: float, is_backward: bool) -> None:
        for moved in self._awaited.values():
            self._attends.submit(moved.result)
        self._awaited.clear()
        rate = self.costs["backward_" * is_backward + "flops_per_second"]
        seconds = self.costs["seconds_per_launch"] + flops / rate
        self._last = self._attends.submit(time.sleep, self.slower * seconds)

    def exchange(self, move: Callable[[], None], kind: int, stage: int) -> Callable[[], None]:
        """Gives what has later attention wait for keys, if these are not handed on in the node by
        another exchange of the stage. Gradients go after the attention that makes them.
        """
        before = None if kind == CAST else self._last
        moved = self._exchanges.submit(lambda: (before and before.result(), move()))
        self._awaited.pop(stage, None)
        return lambda: self._awaited.update({stage: moved} if kind == CAST else {})

    def wait(self) -> None:
        self._exchanges.submit(int).result()
        self._last.result()

    def carrying(self, rank: int, sizes: list[int]) -> float:
        """Seconds for bytes to or from each rank; the host's own link and the network carry theirs
        at the same time.
        """
        taken = [0.0, 0.0]
        for peer, size in enumerate(sizes):
            if size and peer != rank:
                is_far = peer // self.per_host != rank // self.per_host
                link = "network_" * is_far
                taken[is_far] += self.costs[link + "seconds_per_transfer"]
                taken[is_far] += size / self.costs[link + "bytes_per_second"]
        return self.slower * max(taken)


class Throttled(ProcessGroupTransport):
    """Exchanges that send once the links of this rank would have carried them. Rows, which are
    zeros, are there at once for the host, which so waits for them as little as beside a GPU.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__(dist.new_group())
        self._machine, self._links = machine, dist.new_group()

    def start_bytes(self, exchange):
        sizes = exchange.send_bytes, exchange.receive_bytes
        if sizes[0] == sizes[1] == [HEADER_BYTES] * self.num_ranks:
            return super().start_bytes(exchange)
        bytes_at(exchange.receive, sum(sizes[1]), torch.device("cpu")).zero_()
        outgoing, incoming = (torch.zeros(sum(n), dtype=torch.uint8).split(n) for n in sizes)
        taken = max(self._machine.carrying(self.rank, each) for each in sizes)
        others = [peer for peer in range(self.num_ranks) if peer != self.rank]

        def move() -> None:
            group = self._links
            works = [dist.irecv(incoming[p], p, group) for p in others if sizes[1][p]]
            time.sleep(taken)
            works += [dist.isend(outgoing[p], p, group) for p in others if sizes[0][p]]
            for work in works:
                work.wait()

        return self._machine.exchange(move, exchange.kind, exchange.stage)


def register_counted(machine: Machine) -> None:
    """The backend "counted", whose results are zeros."""

    def prepare(problem: backends.Problem) -> float:
        pairs = area(problem.slices.tolist()) * problem.q_shape[1]
        return pairs * problem.q_shape[2] * (10 if problem.is_backward else 4)

    def forward(flops: float, inputs, result) -> None:
        result.out.zero_()
        result.lse.zero_()
        machine.attend(flops, False)

    def backward(flops: float, inputs, result, gradients) -> None:
        for gradient in (gradients.dq, gradients.dk, gradients.dv):
            gradient.zero_()
        machine.attend(flops, True)

    limits = backends.Limits(has_float_outputs=True)
    backends.register("counted", forward, backward, limits, prepare, devices=("cpu",))


def predicted(plan: Plan) -> float:
    return plan.report.forward_seconds + plan.report.backward_seconds


def step_of(plan: Plan, communicator: Communicator, machine: Machine) -> Callable[[], float]:
    """Runs a forward and a backward and gives the slowest rank's seconds on the counted machine."""
    bound = BoundPlan(plan, dist.group.WORLD, communicator, backend="counted")
    q, k, v, dout = (
        torch.zeros(bound.local_rows, HEADS[i], HEADS[2], dtype=torch.bfloat16).requires_grad_()
        for i in (0, 1, 1, 0)
    )

    def step() -> float:
        dist.barrier()
        begin = time.monotonic()
        out = bound.calc_attn(q, k, v)[0]
        machine.wait()
        torch.autograd.grad(out, (q, k, v), dout)
        machine.wait()
        spent = torch.tensor(time.monotonic() - begin)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        return float(spent) / machine.slower

    return step


def times_of(name: str, options, machine: Machine, communicator: Communicator) -> list[float]:
    """Of auto over the fastest choice, and over what was planned; tells all on rank 0."""
    mask = MASKS[name](options.rows)
    plans = [
        Plan.from_mask(
            mask, cp_size=dist.get_world_size(), num_heads_q=HEADS[0], num_heads_kv=HEADS[1],
            head_dim=HEADS[2], work="keys", devices_per_node=machine.per_host, **given,
        )
        for given in CHOICES
    ]  # fmt: skip
    machine.slower = options.seconds / predicted(plans[0])
    # Plans of one placement and one degree run once, whether these are chosen or named.
    keys = [(predicted(plan), plan.report.num_stages) for plan in plans]
    steps = {key: step_of(plan, communicator, machine) for key, plan in zip(keys, plans)}
    rounds = [{key: step() for key, step in steps.items()} for _ in range(options.rounds)]
    least = [min(times[key] for times in rounds) for key in keys]
    if dist.get_rank() == 0:
        for given, (planned, stages), seconds in zip(CHOICES, keys, least):
            told = f"{1e3 * seconds:.3f} ms, {1e3 * planned:.3f} planned, {stages} stages"
            print(name, given or "auto", told, file=sys.stderr)
    return [least[0] / min(least), least[0] / keys[0][0]]


def rows_of(options: argparse.Namespace, folder: pathlib.Path) -> list[dict]:
    machine = Machine(options.per_host)
    register_counted(machine)
    communicator = Communicator.over(Throttled(machine))
    hosts = f"{dist.get_world_size() // options.per_host}x{options.per_host}"
    rows = []
    for rate in options.rates.split(","):
        machine.use(1e9 * float(rate), folder / f"{rate}.json")
        chosen = options.masks.split(",")
        found = [times_of(name, options, machine, communicator) for name in chosen]
        for name, values in zip(("over_best", "over_planned"), zip(*found)):
            value = round(sum(values) / len(values), 4)
            name = f"hosts.throttled.{hosts}.{rate}.{name}"
            rows.append({"name": name, "value": value, "unit": "ratio"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--per-host", type=int, default=1, help="ranks")
    parser.add_argument("--rates", default="5,50", help="GB/s")
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--rounds", type=int, default=2, help="of which the fastest counts")
    parser.add_argument("--seconds", type=float, default=0.4)
    options = parser.parse_args()
    for name in options.masks.split(","):
        if name not in MASKS:
            parser.error(f"--masks has {name}; allowed: {', '.join(MASKS)}")
    dist.init_process_group("gloo")
    if options.per_host < 1 or dist.get_world_size() % options.per_host:
        allowed = f"divisors of the {dist.get_world_size()} ranks"
        parser.error(f"--per-host is {options.per_host}; allowed: {allowed}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(options, pathlib.Path(folder))
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
