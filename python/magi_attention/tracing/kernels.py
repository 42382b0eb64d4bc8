# SPDX-License-Identifier: Apache-2.0
"""Kernels and copies of GPUs by torch.profiler, on the clock of time.monotonic_ns."""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "magi_attention.trace:"
_MARKS = 5
_DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST_KINDS = ("cuda_runtime", "cuda_driver")


class KernelProfile:
    """`kernels`, after the block: what the GPU did inside, as kernels_of gives it."""

    def __init__(self) -> None:
        self.kernels: list[dict[str, Any]] = []
        activities = [ProfilerActivity.CPU]  # for the marks
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)

    def __enter__(self) -> KernelProfile:
        self._profile.__enter__()
        for _ in range(_MARKS):
            with record_function(f"{_MARK}{time.monotonic_ns()}"):
                pass
        return self

    def __exit__(self, *error) -> None:
        if torch.cuda.is_available() and error[0] is None:
            torch.cuda.synchronize()
        self._profile.__exit__(*error)
        if error[0] is None:
            self.kernels = kernels_of(self._events())

    def _events(self) -> list[dict[str, Any]]:
        handle, path = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        try:
            self._profile.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                return json.load(file)["traceEvents"]
        finally:
            os.unlink(path)


def kernels_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reads from the events of an exported profile: name, stream, begin and end of each kernel and
    copy, and `launched`, when the host launched it (None where that is not known); ns, by begin.
    """
    shift = _shift_ns(events)
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in _HOST_KINDS and "correlation" in event.get("args", {})
    }
    found = []
    for event in events:
        if event.get("cat") not in _DEVICE_KINDS:
            continue
        launch = launches.get(event["args"].get("correlation"))
        begin = round(event["ts"] * 1e3) + shift
        found.append({
            "name": event["name"],
            "stream": event["args"].get("stream", 0),
            "begin": begin,
            "end": begin + round(event["dur"] * 1e3),
            "launched": None if launch is None else round(launch * 1e3) + shift,
        })  # fmt: skip
    return sorted(found, key=lambda kernel: kernel["begin"])


def _shift_ns(events: list[dict[str, Any]]) -> int:
    """Converts from the profiler's clock to ours: the mark that began soonest after its name was
    made.
    """
    marks = [
        int(event["name"].removeprefix(_MARK)) - round(event["ts"] * 1e3)
        for event in events
        if event.get("name", "").startswith(_MARK) and event.get("ph") == "X"
    ]
    if not marks:
        raise RuntimeError("torch.profiler has lost the marks that tell its clock")
    return max(marks)


def launched_by(kernels: list[dict], passes: list[dict]) -> list[dict]:
    """The kernels with `pass`, the place of the pass that launched each, and `step`, the name of
    its step; None for what others launched.
    """
    for kernel in kernels:
        kernel["pass"] = kernel["step"] = None
        when = kernel.pop("launched")
        if when is None:
            continue
        for place, one in enumerate(passes):
            if one["begin"] <= when <= one["end"]:
                kernel["pass"] = place
                for step in one["steps"]:
                    if step["begin"] <= when <= step["end"]:
                        kernel["step"] = step["name"]
    return kernels
