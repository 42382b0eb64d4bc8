# SPDX-License-Identifier: Apache-2.0
"""Host time of calc_attn over ranks: per layer with a cached plan, beside that of torch alone, and
up to the first kernel of a mask that was not seen before.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from attention_masks import DATA, documents, mask_slices
from distributed.ours import typed
from distributed.timing import Stopwatch, median
from magi_attention import api
from magi_attention.plan import Plan
from python.calc_attn_bench import Nothing

_LAYERS = 16
_ROWS_PER_RANK = 128  # so few that the device does not hold the host up
_NEW_ROWS, _NEW_RANKS = 65536, 8
_DRAWS, _WARM_DRAWS = 20, 4


def host_us(
    watch: Stopwatch, group: dist.ProcessGroup, shape, dtype, device, calls: int
) -> dict[str, float]:
    """Microseconds of the host per layer, forward and backward, of the slowest rank: layers in a
    chain, from the first call until the last is enqueued; median of `calls` steps. `host`: of
    calc_attn; `floor`: of a function that only allocates its results, in turn with it.
    """
    rows = _ROWS_PER_RANK * group.size()
    key = _key(mask_slices("causal", rows), rows, shape, group)
    heads_q, heads_kv, dim = shape

    def leaf(heads: int) -> torch.Tensor:
        x = torch.randn(_ROWS_PER_RANK, heads, dim, device=device, dtype=dtype)
        return x.requires_grad_()

    q, keys = leaf(heads_q), [(leaf(heads_kv), leaf(heads_kv)) for _ in range(_LAYERS)]
    leaves = [q, *(x for pair in keys for x in pair)]
    dout = torch.randn_like(q)

    def seconds_of(function) -> float:
        dist.barrier(group)
        _wait(device)
        begin = time.perf_counter()
        x = q
        for k, v in keys:
            x = function(x, k, v)[0]
        torch.autograd.grad(x, leaves, dout)
        spent = (time.perf_counter() - begin) / _LAYERS
        _wait(device)
        return spent

    functions = {"host": lambda *qkv: api.calc_attn(*qkv, key), "floor": Nothing.apply}
    seconds = {name: [] for name in functions}
    for _ in range(calls + calls // 4 + 2):
        for name, function in functions.items():
            seconds[name].append(seconds_of(function))
    return {name: median(watch.slowest(all_[-calls:])) * 1e6 for name, all_ in seconds.items()}


def new_mask_ms(
    watch: Stopwatch, group: dist.ProcessGroup, shape, dtype, device
) -> dict[str, float]:
    """Milliseconds for 64k tokens in documents that were not seen before, median over draws:
    `plan8`: the plan for 8 ranks; `plan`: that for this group; `first_call`: key and first forward
    call on this group, until the host has enqueued it, which is after the first kernel starts.
    """
    size = group.size()
    count = _NEW_ROWS // size
    q, k, v = (torch.randn(count, h, shape[2], device=device, dtype=dtype) for h in _heads(shape))
    found = {"plan8": [], "plan": [], "first_call": []}
    for draw in range(_DRAWS):
        slices = mask_slices("varlen_causal", _NEW_ROWS, documents(DATA, _NEW_ROWS, draw))
        ranges = typed(slices, _NEW_ROWS)
        if device.type == "cuda":
            dist.barrier(group)
            _wait(device)
            begin = time.perf_counter()
            key = _key_of(ranges, _NEW_ROWS, shape, group)
            with torch.no_grad():
                api.calc_attn(q, k, v, key)
            found["first_call"].append(time.perf_counter() - begin)
            _wait(device)
        found["plan8"].append(_plan_seconds(ranges, _NEW_RANKS, shape))
        found["plan"].append(_plan_seconds(ranges, size, shape))
    return {
        name: median(watch.slowest(values[_WARM_DRAWS:])) * 1e3
        for name, values in found.items()
        if values
    }


def figures(watch: Stopwatch, group: dist.ProcessGroup, options) -> list[dict]:
    """Rows for tools/record. With other than 8 ranks the time of a new mask is that of this group
    and what the plan for 8 ranks takes longer.
    """
    shape, dtype, device = options.shape, options.dtype, options.device
    rows = []
    new = new_mask_ms(watch, group, shape, dtype, device)
    for name, value in new.items():
        label = f"dist{group.size()}.new_mask.{name}_ms"
        rows.append({"name": label, "value": value, "unit": "ms"})
    if device.type == "cuda":
        total = new["first_call"] + max(0.0, new["plan8"] - new["plan"])
        rows.append({"name": "dist.new_mask_ms", "value": total, "unit": "ms"})
        spent = host_us(watch, group, shape, dtype, device, 60)
        rows.append({"name": "dist.host_us", "value": spent["host"], "unit": "us"})
        rows.append({"name": "dist.host_floor_us", "value": spent["floor"], "unit": "us"})
    return [{**row, "value": round(row["value"], 4)} for row in rows]


def _heads(shape):
    return shape[0], shape[1], shape[1]


def _key(slices, total: int, shape, group):
    return _key_of(typed(slices, total), total, shape, group)


def _key_of(ranges, total: int, shape, group):
    return api.magi_attn_flex_key(*ranges, total, total, *shape, cp_group_or_mesh=group)


def _plan_seconds(ranges, size: int, shape) -> float:
    heads_q, heads_kv, dim = shape
    begin = time.perf_counter()
    Plan.from_ranges(
        *ranges, _NEW_ROWS, cp_size=size, num_heads_q=heads_q, num_heads_kv=heads_kv, head_dim=dim
    )
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
