# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training step goes, from a trace of torch.profiler."""

from __future__ import annotations

# The first part whose words are in a kernel's name has its time; others are elementwise.
PARTS = {
    "communication": ("nccl", "push_kernel", "await_kernel", "exchange"),
    "optimizer": ("adam", "multi_tensor"),
    "attention": ("magi", "flash", "fmha", "sdpa", "attention"),
    "products": ("gemm", "nvjet", "cutlass", "cublas", "xmma", "_mm"),
    "copies": ("memcpy", "memset"),
}
OTHERS, IDLE = "elementwise", "host"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# While several run at once, the one that the others hide behind.
_ORDER = ("products", "attention", "optimizer", OTHERS, "copies", "communication")


def part_of(name: str) -> str:
    """The part of a kernel by its name."""
    lower = name.lower()
    for part, words in PARTS.items():
        if any(word in lower for word in words):
            return part
    return OTHERS


def parts_of_trace(trace: dict, whole_ms: float) -> dict[str, float]:
    """Milliseconds of whole_ms by part: of kernels at the same time the first of the order counts,
    so that communication is what no computation hides; `host` is when the GPU runs nothing.
    """
    edges = []
    for event in trace["traceEvents"]:
        if event.get("cat") in _DEVICE:
            rank = _ORDER.index(part_of(event["name"]))
            edges += [(event["ts"], rank, 1), (event["ts"] + event["dur"], rank, -1)]
    found, running, last = dict.fromkeys(_ORDER, 0.0), [0] * len(_ORDER), 0.0
    for at, rank, change in sorted(edges):
        first = next((i for i, count in enumerate(running) if count), None)
        if first is not None:
            found[_ORDER[first]] += (at - last) / 1e3
        running[rank] += change
        last = at
    found[IDLE] = max(0.0, whole_ms - sum(found.values()))
    return {name: round(value, 3) for name, value in found.items()}
