# SPDX-License-Identifier: Apache-2.0
"""Host time of calc_attn on a GPU: calc_attn_bench.py --out FILE

One rank, cached plan, one token. `host_us`: the wall time of forward and backward, from the call
until the device is done, less the time of the kernels; median of 1,000; torch as it comes.
`floor_us`: the wall time of a function that does nothing but allocate its results. A backward as it
comes runs on a thread of torch's, one per GPU: waking that up and waiting for it costs a lone call
as much as many steps of a model, which does it once for all its layers. `host_own_thread_us` and
`floor_own_thread_us` are the same in the calling thread
(torch.autograd.set_multithreading_enabled(False)). `layer_us`: host time of one more layer on
torch's thread: seventeen chained calls less one, over sixteen, less the kernels of one.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from magi_attention import api
from magi_attention.common import AttnRanges

WARM_UP, CALLS, PROFILED = 200, 1000, 100
HEADS, DIM = 8, 128
LAYERS = 16


class Nothing(torch.autograd.Function):
    """Allocates what attention allocates."""

    @staticmethod
    def forward(ctx, q, k, v):
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        q, k, v, *_ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def wall_us(step):
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e6


def kernel_us(step):
    """Time of all kernels and copies of one step on the device."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in found.key_averages()) / PROFILED


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    one = AttnRanges.from_ranges([(0, 1)])
    key = api.magi_attn_flex_key(
        one, one, "causal", 1, 1, HEADS, HEADS, DIM, cp_group_or_mesh=dist.group.WORLD
    )
    leaves = [
        torch.randn(1, HEADS, DIM, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    upstream = torch.randn(1, HEADS, DIM, device=device, dtype=torch.bfloat16)

    def run(function):
        out = function(*leaves)[0]
        out.backward(upstream)
        for leaf in leaves:
            leaf.grad = None

    def attend():
        run(lambda q, k, v: api.calc_attn(q, k, v, key))

    def layers(q, k, v):
        for _ in range(LAYERS):
            q = api.calc_attn(q, k, v, key)[0]
        return api.calc_attn(q, k, v, key)

    def nothing():
        run(Nothing.apply)

    rows = {"forward_us": wall_us(lambda: api.calc_attn(*leaves, key))}
    for where, is_threaded in (("", True), ("_own_thread", False)):
        with torch.autograd.set_multithreading_enabled(is_threaded):
            rows[f"host{where}_us"] = wall_us(attend)
            rows[f"floor{where}_us"] = wall_us(nothing)
    rows["layer_us"] = (wall_us(lambda: run(layers)) - wall_us(attend)) / LAYERS
    rows["kernels_us"] = kernel_us(attend)  # last: the profiler stays in the way of later calls
    for name in ("host_us", "host_own_thread_us", "layer_us"):
        rows[name] -= rows["kernels_us"]
    named = [
        {"name": f"python.calc_attn.{name}", "value": round(value, 2), "unit": "us"}
        for name, value in rows.items()
    ]
    options.out.write_text(json.dumps(named, indent=1), encoding="utf-8")
    print(json.dumps(named))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
