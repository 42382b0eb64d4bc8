#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels for every GPU since Ampere (backend mma) beside others: portable.py --out ROWS [--parts]

bfloat16, 64 query heads, 8 kv heads; head dim 128 where the name tells no other. Rates over that
of the other kernel, median over rounds in random order; names end in .forward and .backward:
  flash  mma.CASE over PyTorch's FLASH_ATTENTION (FlashAttention-2, the same instructions), and
         mma.deterministic.slowdown, how much longer the deterministic backward takes
  flex   mma.CASE over compiled FlexAttention
  forms  mma.ptx: the share of results that have the same bits where the driver compiles the PTX
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import flex_yardstick
from attention_masks import (
    BLOCK,
    DATA,
    INFINITE,
    OF_DOCUMENTS,
    WINDOW,
    documents,
    mask_slices,
    prefix_tree,
    with_types,
)  # fmt: skip
from compare_attention import random_tensors, time_alternating
from magi_attention.api import flex_flash_attn_func

HEADS, KV_HEADS = 64, 8
CASES = {  # mask, rows, head dim by part and name
    "flash": {
        "full.8k": ("full", 8192, 128),
        "causal.8k": ("causal", 8192, 128),
        "hd64.causal.16k": ("causal", 16384, 64),
        "hd256.causal.16k": ("causal", 16384, 256),
    },
    "flex": {
        "varlen_causal.8k": ("varlen_causal", 8192, 128),
        "window.32k": ("window", 32768, 128),
        "prefix_tree.32k": ("prefix_tree", 32768, 128),
    },
}
FORMS = ((64, 64), (128, 128), (192, 128), (256, 256))
ALLOWED_ERROR = 0.02


def ours(inputs, slices, is_deterministic=False):
    bounds = torch.tensor([piece[:4] for piece in slices], dtype=torch.int32)
    types = [(s[5] < INFINITE) + 2 * (s[4] > -INFINITE) for s in slices]
    ranges = bounds[:, :2], bounds[:, 2:], torch.tensor(types, dtype=torch.int32)
    return lambda: flex_flash_attn_func(*inputs, *ranges, deterministic=is_deterministic)[0]


def flash(inputs, is_causal):
    views = [tensor.transpose(0, 1).unsqueeze(0) for tensor in inputs]

    def call():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = functional.scaled_dot_product_attention(
                *views, is_causal=is_causal, enable_gqa=True
            )
        return out[0].transpose(0, 1)

    return call


def flex(inputs, mask, rows, lengths):
    rule = tree_rule(rows) if mask == "prefix_tree" else None
    rule = rule or flex_yardstick.mask_rule(mask, lengths, WINDOW, BLOCK)
    attention = flex_yardstick.Flex(*inputs, rule)
    return lambda: attention()[0].transpose(0, 1)


def tree_rule(rows):
    """A query sees the keys before it whose node's subtree it is in."""
    ends, starts, at = [], [], 0
    for parent, size in prefix_tree(rows):
        starts.append((parent, size))
        at += size
        ends.append(at)
        while parent >= 0:
            ends[parent] = at
            parent = starts[parent][0]
    sizes = torch.tensor([size for _, size in starts], device="cuda")
    end = torch.repeat_interleave(torch.tensor(ends, device="cuda"), sizes)
    return lambda b, h, q, k: (q >= k) & (q < end[k])


def gradients(call, inputs, dout):
    out = call()
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def check_equal(found, expected, name):
    for one, other in zip(found, expected):
        error = ((one.float() - other.float()).norm() / other.float().norm()).item()
        if not error <= ALLOWED_ERROR:
            raise SystemExit(f"{name}: results differ by {error:.2g}")


def ratios(part, name, options):
    """Yields the rows of a case."""
    mask, rows, dim = CASES[part][name]
    shapes = (HEADS, dim), (KV_HEADS, dim), (KV_HEADS, dim), (HEADS, dim)
    *tensors, dout = random_tensors(rows, shapes)
    inputs = [tensor.requires_grad_() for tensor in tensors]
    lengths = documents(DATA, rows, 0) if mask in OF_DOCUMENTS else None
    slices = with_types(mask_slices(mask, rows, lengths))
    other = (
        flash(inputs, mask == "causal") if part == "flash" else flex(inputs, mask, rows, lengths)
    )
    calls = {"ours": ours(inputs, slices), "other": other}
    check_equal([calls["ours"]()], [other()], name)
    yield timed(f"mma.{name}.forward", calls, options)
    calls = {key: gradients(call, inputs, dout) for key, call in calls.items()}
    check_equal(calls["ours"](), calls["other"](), name)
    yield timed(f"mma.{name}.backward", calls, options)
    if name == "full.8k":
        calls["other"] = gradients(ours(inputs, slices, True), inputs, dout)
        yield timed("mma.deterministic.slowdown", calls, options)


def timed(name, calls, options):
    """The row of how many times as long the other call takes as ours."""
    seconds = time_alternating(calls, options.rounds, options.burst)
    value = statistics.median(b / a for a, b in zip(seconds["ours"], seconds["other"]))
    shown = {key: f"{statistics.median(times) * 1e3:.3f} ms" for key, times in seconds.items()}
    print(f"{name} {value:.3f} {shown}", file=sys.stderr, flush=True)
    return {"name": name, "value": value, "unit": "ratio"}


def digests():
    """Of results and gradients of each head dim and type. Torch computes nothing on the GPU."""
    made, found = torch.Generator().manual_seed(1), {}
    slices = with_types(
        [(0, 700, 0, 900, -INFINITE, 200), (300, 800, 100, 400, -INFINITE, INFINITE)]
    )
    for (dim_qk, dim_v), dtype in ((f, t) for f in FORMS for t in (torch.bfloat16, torch.float16)):
        shapes = (800, 8, dim_qk), (900, 2, dim_qk), (900, 2, dim_v), (800, 8, dim_v)
        *inputs, dout = (torch.randn(s, generator=made).to(dtype).cuda() for s in shapes)
        inputs = [tensor.requires_grad_() for tensor in inputs]
        out = ours(inputs, slices, True)()
        for i, result in enumerate((out, *torch.autograd.grad(out, inputs, dout))):
            data = result.detach().cpu().view(torch.int16).numpy().tobytes()
            found[f"{dim_qk}:{dim_v} {dtype} {i}"] = hashlib.sha256(data).hexdigest()
    return found


def share_of_ptx():
    """Machine code of the library beside what the driver makes of its PTX, in two processes."""
    found = []
    for forces in ("0", "1"):
        environment = {**os.environ, "CUDA_FORCE_PTX_JIT": forces, "CUDA_CACHE_DISABLE": "1"}
        command = [sys.executable, __file__, "--digests"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found.append(json.loads(done.stdout))
    own, compiled = found
    share = sum(own[key] == compiled[key] for key in own) / len(own)
    return [{"name": "mma.ptx", "value": share, "unit": "ratio"}]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default="rows.json")
    parser.add_argument("--parts", default="flash,flex,forms")
    parser.add_argument("--digests", action="store_true", help="prints those of results alone")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--burst", type=float, default=0.1, help="seconds per kernel and round")
    options = parser.parse_args()
    os.environ["MAGI_ATTENTION_KERNEL_BACKEND"] = "mma"
    if options.digests:
        print(json.dumps(digests()))
        return
    rows = []
    for part in options.parts.split(","):
        for name in CASES.get(part, ("",)):
            for row in ratios(part, name, options) if name else share_of_ptx():
                rows.append(row)
                options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
