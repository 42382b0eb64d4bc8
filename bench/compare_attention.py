#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times of ours, of torch SDPA with cuDNN forced and, where asked for, of FlexAttention (--flex),
FlashAttention-4 (--fa4) and cuDNN's flex attention (--cudnn-flex), alternating in one process;
forward, or the whole backward with --backward (ours: preparation, main kernel and all; theirs:
torch's autograd).

--baseline LIBRARY times another build of ours beside it, kernel by kernel.

Each case is timed in rounds; a round times every kernel once (a burst between two CUDA events), in
an order drawn anew so that none always follows the same other: after a cooler kernel clocks are
higher. Ratios are medians over rounds of our rate over cuDNN's rate in the same round. Rates are
4 (backward: 10) * area * heads * dim per second, of two dims their mean; cuDNN runs full or causal
of the same length, the others the mask itself.
"""

import argparse
import ctypes
import json
import pathlib
import random
import statistics
import subprocess
import time
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import flex_yardstick
import peer_yardsticks
from attention_masks import BLOCK, OF_DOCUMENTS, WINDOW, area, documents, mask_slices

YARDSTICKS = ("cudnn", "flex", *peer_yardsticks.PEERS)
PEER_LABELS = {"flex": "FlexAttention", "fa4": "FlashAttention-4", "cudnn_flex": "cuDNN flex"}
BASELINE = " (baseline)"  # behind the name of a kernel of the other build
HEAD_WALKS = (0, 1, 2)  # by cost, heads of a q tile together, head after head


class Problem(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in ("rows_q", "rows_k", "heads_q", "heads_kv", "dim_qk", "dim_v")
    ]
    _fields_ += [("packed_heads", ctypes.c_int32), ("num_slices", ctypes.c_int32)]
    _fields_.append(("slices", ctypes.POINTER(ctypes.c_int32)))


class Tensors(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse")]


class Gradients(ctypes.Structure):
    _fields_ = [("forward", Tensors)] + [
        (name, ctypes.c_void_p) for name in ("dout", "dq", "dk", "dv")
    ]


class Tuning(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "is_deterministic",
            "packed_heads",
            "heads_per_item",
            "section_heads",
            "head_walk",
            "is_plain",
        )
    ]


def load(path):
    library = ctypes.CDLL(path)
    library.magi_bench_error.restype = ctypes.c_char_p
    library.magi_bench_variant.restype = ctypes.c_char_p
    library.magi_bench_make.restype = ctypes.c_void_p
    library.magi_bench_make.argtypes = [ctypes.POINTER(Problem), ctypes.c_int]
    library.magi_bench_run.argtypes = [ctypes.c_void_p, ctypes.POINTER(Tensors), ctypes.c_void_p]
    library.magi_bench_packed_heads.argtypes = [ctypes.c_void_p]
    library.magi_bench_free.argtypes = [ctypes.c_void_p]
    library.magi_bench_backward_make.restype = ctypes.c_void_p
    library.magi_bench_backward_make.argtypes = [ctypes.POINTER(Problem), ctypes.POINTER(Tuning)]
    library.magi_bench_backward_choice.argtypes = [ctypes.c_void_p, ctypes.POINTER(Tuning)]
    library.magi_bench_backward_bind.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(Gradients),
        ctypes.c_void_p,
    ]
    library.magi_bench_backward_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.magi_bench_backward_free.argtypes = [ctypes.c_void_p]
    return library


def dims_text(dim_qk, dim_v):
    return str(dim_qk) if dim_qk == dim_v else f"{dim_qk}x{dim_v}"


def dims_of_variant(label):
    first = label.split()[0]
    return first.removeprefix("dim") if first.startswith("dim") else "128"


def problem_of(slices, shape, packed_heads):
    rows, heads, kv_heads, dim_qk, dim_v = shape
    flat = (ctypes.c_int32 * (6 * len(slices)))(*[x for s in slices for x in s])
    return Problem(rows, rows, heads, kv_heads, dim_qk, dim_v, packed_heads, len(slices), flat)


class Ours:
    def __init__(self, library, variant, slices, shape, packed_heads):
        problem = problem_of(slices, shape, packed_heads)
        self.library = library
        self.work = library.magi_bench_make(ctypes.byref(problem), variant)
        if not self.work:
            raise RuntimeError(library.magi_bench_error().decode())
        self.packed_heads = library.magi_bench_packed_heads(self.work)

    def bind(self, q, k, v):
        self.out = q.new_empty(*q.shape[:2], v.shape[2])
        self.lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        self.tensors = Tensors(*[t.data_ptr() for t in (q, k, v, self.out, self.lse)])

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        if self.library.magi_bench_run(self.work, ctypes.byref(self.tensors), stream):
            raise RuntimeError(self.library.magi_bench_error().decode())

    def close(self):
        self.library.magi_bench_free(self.work)


class OursBackward:
    def __init__(self, library, tuning, slices, shape):
        self.library = library
        self.work = library.magi_bench_backward_make(
            ctypes.byref(problem_of(slices, shape, 0)), ctypes.byref(tuning)
        )
        if not self.work:
            raise RuntimeError(library.magi_bench_error().decode())
        chosen = Tuning()
        library.magi_bench_backward_choice(self.work, ctypes.byref(chosen))
        self.packed_heads, self.heads_per_item = chosen.packed_heads, chosen.heads_per_item

    def bind(self, q, k, v, dout):
        out = torch.empty_like(dout)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device="cuda")
        self.gradients = [torch.empty_like(t) for t in (q, k, v)]
        self.kept = (q, k, v, out, lse, dout)
        forward = Tensors(*[t.data_ptr() for t in self.kept[:5]])
        pointers = Gradients(forward, *[t.data_ptr() for t in (dout, *self.gradients)])
        stream = torch.cuda.current_stream().cuda_stream
        self.check(self.library.magi_bench_backward_bind(self.work, ctypes.byref(pointers), stream))

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        self.check(self.library.magi_bench_backward_run(self.work, stream))

    def check(self, status):
        if status:
            raise RuntimeError(self.library.magi_bench_error().decode())

    def close(self):
        self.library.magi_bench_backward_free(self.work)


def cudnn_call(q, k, v, is_causal):
    """[rows, heads, dim] as SDPA's [1, heads, rows, dim]."""
    views = [t.transpose(0, 1).unsqueeze(0) for t in (q, k, v)]

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(
                *views, is_causal=is_causal, enable_gqa=True
            )

    return call


def cudnn_backward_call(q, k, v, dout, is_causal):
    """The gradients of [rows, heads, dim] tensors; the forward runs once, here."""
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    out = cudnn_call(*inputs, is_causal)()
    upstream = dout.transpose(0, 1).unsqueeze(0)
    return lambda: torch.autograd.grad(out, inputs, upstream, retain_graph=True)


def burst_seconds(call, repeats):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / repeats


def time_alternating(calls, rounds, burst):
    """Seconds of each call by round."""
    names = list(calls)
    for name in names:
        calls[name]()
    torch.cuda.synchronize()
    repeats = {name: max(1, round(burst / burst_seconds(calls[name], 2))) for name in names}
    seconds = {name: [] for name in names}
    draw = random.Random(0)
    for _ in range(rounds):
        for name in draw.sample(names, len(names)):
            seconds[name].append(burst_seconds(calls[name], repeats[name]))
    return seconds


def clocks():
    fields = "clocks.sm,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    values = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split(",")
    return [float(v) for v in values] if len(values) == 3 else []


def is_ours(key):
    return key not in YARDSTICKS and not key.endswith(BASELINE)


def builds(library, options):
    """This build and, where asked for, the other one, each with what its kernels' names end in."""
    return [(library, ""), *([(options.baseline, BASELINE)] if options.baseline else [])]


def forward_calls(library, case, options):
    slices, shape, rule = case.slices, case.shape, case.rule
    rows, heads, kv_heads, dim_qk, dim_v = shape
    q, k, v = random_tensors(rows, ((heads, dim_qk), (kv_heads, dim_qk), (kv_heads, dim_v)))
    calls = {"cudnn": cudnn_call(q, k, v, case.is_causal)}
    calls |= peer_yardsticks.forward_calls(options.peers, (q, k, v), *case.of_peers)
    if options.flex:
        calls["flex"] = flex_yardstick.Flex(q, k, v, rule)
    for variant, label, packed_heads in options.variants:
        if dims_of_variant(label) != dims_text(dim_qk, dim_v):
            continue
        for build, suffix in builds(library, options):
            ours = Ours(build, variant, slices, shape, packed_heads)
            ours.bind(q, k, v)
            name = f"{label} hp{ours.packed_heads}" if packed_heads else label
            calls[name + suffix] = ours
    if not any(is_ours(key) for key in calls):
        raise SystemExit(f"--variants has none for head dim {dims_text(dim_qk, dim_v)}")
    return calls


def backward_calls(library, case, options):
    slices, shape, rule = case.slices, case.shape, case.rule
    rows, heads, kv_heads, dim_qk, dim_v = shape
    dims = ((heads, dim_qk), (kv_heads, dim_qk), (kv_heads, dim_v), (heads, dim_v))
    q, k, v, dout = random_tensors(rows, dims)
    calls = {"cudnn": cudnn_backward_call(q, k, v, dout, case.is_causal)}
    calls |= peer_yardsticks.backward_calls(options.peers, (q, k, v), dout, *case.of_peers)
    if options.flex:
        calls["flex"] = flex_yardstick.backward_call(q, k, v, dout, rule)
    for label, tuning in options.tunings:
        for build, suffix in builds(library, options):
            ours = OursBackward(build, tuning, slices, shape)
            ours.bind(q, k, v, dout)
            calls[label + suffix] = ours
    return calls


def random_tensors(rows, shapes):
    """One of [rows, heads, dim] for each (heads, dim)."""
    generator = torch.Generator(device="cuda").manual_seed(time.time_ns() % (1 << 31))
    return [
        torch.randn(rows, heads, dim, dtype=torch.bfloat16, device="cuda", generator=generator)
        for heads, dim in shapes
    ]


def max_error(calls, is_backward):
    """Of the first of ours against cuDNN, same mask."""
    ours = next(call for key, call in calls.items() if is_ours(key))
    expected = calls["cudnn"]()
    if not is_backward:
        return (ours.out.float() - expected[0].transpose(0, 1).float()).abs().max().item()
    return max((a.float() - b.float()).abs().max().item() for a, b in zip(ours.gradients, expected))


class MaskCase(NamedTuple):
    """What all calls of a case share."""

    slices: list
    shape: tuple
    is_causal: bool  # cuDNN's mask
    rule: object  # FlexAttention's
    of_peers: tuple  # name of the mask, slices, lengths of documents, window


def mask_case(case, options):
    name, length, (dim_qk, dim_v), draw = case
    lengths = documents(options.data, length, draw) if name in OF_DOCUMENTS else None
    slices = mask_slices(name, length, lengths)
    return MaskCase(
        slices,
        (length, *options.heads, dim_qk, dim_v),
        name not in ("full", "varlen_full"),
        flex_yardstick.mask_rule(name, lengths, WINDOW, BLOCK) if options.flex else None,
        (name, slices, lengths, WINDOW),
    )


def run_case(library, case, options):
    name, length, (dim_qk, dim_v), draw = case
    heads, kv_heads = options.heads
    of_mask = mask_case(case, options)
    unit = 10 if options.backward else 4
    pair_flops = unit * heads * (dim_qk + dim_v) / 2
    flops = pair_flops * area(of_mask.slices)
    causal_area = length * (length + 1) // 2
    cudnn_flops = pair_flops * (causal_area if of_mask.is_causal else length * length)
    make_calls = backward_calls if options.backward else forward_calls
    calls = make_calls(library, of_mask, options)
    seconds = time_alternating(calls, options.rounds, options.burst)
    error = None
    if name in ("full", "causal") and length <= 8192:
        error = max_error(calls, options.backward)
    base = [cudnn_flops / s for s in seconds["cudnn"]]
    result = {
        "mask": name,
        "rows": length,
        "heads": f"{heads}:{kv_heads}",
        "dim": dim_qk,
        "dim_v": dim_v,
        "draw": draw,
        "slices": len(of_mask.slices),
        "cudnn_tflops": statistics.median(base) * 1e-12,
        "max_error_vs_cudnn": error,
        "clock_power_temperature": clocks(),
        "ours": {},
    }
    for key, call in calls.items():
        if not is_ours(key):
            continue
        rates = [flops / s for s in seconds[key]]
        ratios = [rate / other for rate, other in zip(rates, base)]
        row = {
            "tflops": statistics.median(rates) * 1e-12,
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
            "packed_heads": call.packed_heads,
        }
        if options.backward:
            row["heads_per_item"] = call.heads_per_item
        if options.baseline:
            pairs = zip(seconds[key + BASELINE], seconds[key])
            row["over_baseline"] = statistics.median(old / new for old, new in pairs)
        result["ours"][key] = row
    for key, call in calls.items():
        if key not in YARDSTICKS:
            call.close()
    add_slowdown(result, seconds)
    for peer in ("flex", *options.peers):
        add_peer(result, seconds, flops, peer)
    print_result(result)
    return result


def add_peer(result, seconds, flops, peer):
    """A peer's rate and how many times as fast ours is, by round: the backward's fast mode, or the
    first of ours.
    """
    if peer not in seconds:
        return
    key = "fast" if "fast" in result["ours"] else next(iter(result["ours"]))
    ratios = [theirs / ours for theirs, ours in zip(seconds[peer], seconds[key])]
    result[peer] = {
        "tflops": flops / statistics.median(seconds[peer]) * 1e-12,
        f"ours_over_{peer}": statistics.median(ratios),
    }


def add_slowdown(result, seconds):
    """How much longer the deterministic backward takes than the fast one, by round."""
    if "deterministic" not in seconds or "fast" not in seconds:
        return
    result["deterministic_slowdown"] = statistics.median(
        slow / fast for slow, fast in zip(seconds["deterministic"], seconds["fast"])
    )


def print_result(result):
    error = result["max_error_vs_cudnn"]
    dims = dims_text(result["dim"], result["dim_v"])
    print(
        f"{result['mask']:14s} {result['rows']:6d} d{dims:<3s} cudnn "
        f"{result['cudnn_tflops']:6.1f}" + (f" err {error:.1e}" if error is not None else "")
    )
    for key, ours in result["ours"].items():
        print(
            f"    {key:28s} {ours['tflops']:6.1f} TFLOP/s  ratio {ours['ratio']:.3f} "
            f"[{ours['ratio_low']:.3f}, {ours['ratio_high']:.3f}] hp {ours['packed_heads']}"
            + (f" per item {ours['heads_per_item']}" if "heads_per_item" in ours else "")
            + (f" over baseline {ours['over_baseline']:.3f}" if "over_baseline" in ours else ""),
            flush=True,
        )
    for peer, label in PEER_LABELS.items():
        if peer in result:
            print(
                f"    {label:28s} {result[peer]['tflops']:6.1f} TFLOP/s, ours / it "
                f"{result[peer][f'ours_over_{peer}']:.3f}",
                flush=True,
            )
    if "deterministic_slowdown" in result:
        print(f"    deterministic / fast {result['deterministic_slowdown']:.3f}", flush=True)


def mean_over_draws(results):
    """Mean ratio of each kernel over the draws of a mask and length that was run with several."""
    ratios = {}
    for result in results:
        for key, ours in result["ours"].items():
            name = (result["mask"], result["rows"], result["dim"], result["dim_v"], key)
            ratios.setdefault(name, []).append(ours["ratio"])
    return [
        {
            "mask": mask,
            "rows": rows,
            "dim": dim_qk,
            "dim_v": dim_v,
            "kernel": key,
            "draws": len(values),
            "mean_ratio": statistics.mean(values),
            "ratio_low": min(values),
            "ratio_high": max(values),
        }
        for (mask, rows, dim_qk, dim_v, key), values in ratios.items()
        if len(values) > 1
    ]


def write_report(options, results):
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        **{peer: peer_yardsticks.version(peer) for peer in options.peers},
        "rounds": options.rounds,
        "results": results,
        "means": mean_over_draws(results),
    }
    options.out.write_text(json.dumps(report, indent=1))


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libmagi_kernel_bench.so")
    parser.add_argument("--baseline", help="libmagi_kernel_bench.so of another build")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(__file__).parent / "data")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON to write")
    parser.add_argument(
        "--cases",
        required=True,
        help="mask:rows[:dim[:draw]],... e.g. full:8192,varlen_causal:8192:128:0; dim of q and k x "
        "dim of v where they differ, e.g. full:16384:192x128",
    )
    parser.add_argument("--heads", default="64:8", help="of q : of k and v")
    parser.add_argument(
        "--variants",
        default="0,2,4,6",
        help="forward: index[/heads per tile],... of bench/gpu/variants.cu, each for one "
        "head dim; heads per tile 0: by the cost model",
    )
    parser.add_argument("--backward", action="store_true")
    parser.add_argument(
        "--flex", action="store_true", help="FlexAttention too; compiling it takes seconds per case"
    )
    parser.add_argument(
        "--fa4", action="store_true", help="FlashAttention-4 too, where it has the mask"
    )
    parser.add_argument(
        "--cudnn-flex",
        action="store_true",
        help="cuDNN's flex attention too, where it has the mask",
    )
    parser.add_argument(
        "--tunings",
        default="deterministic,fast",
        help="backward: deterministic, fast or plain[/heads per tile[/per item[/kv heads of a "
        "section[/head walk]]]],...; 0: by cost; plain: the schedule made by one rule",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--burst", type=float, default=0.02, help="seconds per kernel and round")
    return parser.parse_args()


def parse_dims(text):
    dim_qk, _, dim_v = text.partition("x")
    return int(dim_qk), int(dim_v or dim_qk)


def parse_tuning(text):
    mode, *choices = text.split("/")
    if mode not in ("deterministic", "fast", "plain") or len(choices) > 4:
        raise SystemExit(
            f"--tunings has {text}; allowed: deterministic, fast or plain, and up to 4 numbers"
        )
    choices = [int(c) for c in choices]
    if len(choices) == 4 and choices[3] not in HEAD_WALKS:
        raise SystemExit(f"--tunings has head walk {choices[3]}; allowed: {HEAD_WALKS}")
    choices += [0] * (4 - len(choices))
    return text, Tuning(mode != "fast", *choices, mode == "plain")


def main():
    options = parse()
    if options.rounds < 1:
        raise SystemExit(f"--rounds is {options.rounds}; allowed: 1 or more")
    options.peers = [peer for peer in peer_yardsticks.PEERS if getattr(options, peer)]
    for peer in options.peers:
        peer_yardsticks.load(peer)
    library = load(options.library)
    options.baseline = load(options.baseline) if options.baseline else None
    variants = []
    for text in options.variants.split(","):
        index, _, heads = text.partition("/")
        label = library.magi_bench_variant(int(index)).decode()
        variants.append((int(index), label, int(heads or 0)))
    options.variants = variants
    options.heads = tuple(int(count) for count in options.heads.split(":"))
    options.tunings = [parse_tuning(text) for text in options.tunings.split(",")]
    results = []
    for text in options.cases.split(","):
        parts = text.split(":")
        case = (
            parts[0],
            int(parts[1]),
            parse_dims(parts[2]) if len(parts) > 2 else (128, 128),
            int(parts[3]) if len(parts) > 3 else 0,
        )
        results.append(run_case(library, case, options))
        write_report(options, results)  # a run that is cut off keeps the cases before
    for mean in mean_over_draws(results):
        print(
            f"{mean['mask']} {mean['rows']} {mean['kernel']}: "
            f"mean ratio {mean['mean_ratio']:.3f} over {mean['draws']} draws "
            f"[{mean['ratio_low']:.3f}, {mean['ratio_high']:.3f}]"
        )


if __name__ == "__main__":
    main()
