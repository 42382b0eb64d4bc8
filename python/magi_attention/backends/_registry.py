# SPDX-License-Identifier: Apache-2.0
"""Limits of backends, and those that are supplied as functions of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from magi_attention._native import backend as native
from magi_attention._native.attention import CPU_DEVICE
from magi_attention._native.backend import Gradients, Inputs, Limits, Problem, Result
from magi_attention._native.library import check, lib
from magi_attention.common._arguments import check_kind

OWN = ("ffa", "cutedsl")  # names of the library's own backend
MMA = "mma"  # the library's own kernels for every GPU since Ampere, asked for by name
_DEVICES = ("cpu", "cuda")
_registered: set[str] = set()
_supplied: list[Any] = []  # tables, which the library calls as long as the process lives


def register(
    name: str,
    forward: Callable[[Any, Inputs, Result], None],
    backward: Callable[[Any, Inputs, Result, Gradients], None],
    limits: Limits | None = None,
    prepare: Callable[[Problem], Any] | None = None,
    devices: tuple[str, ...] = _DEVICES,
) -> None:
    """Adds a backend to the process; Plan.bind(backend=name) runs a plan on it.

    prepare(problem) is called once for what forward or backward are then called for any number of
    times; they get what it gave, or the problem itself where prepare is None. Both write the
    tensors they are given, in place, without gradients, on torch's current stream:

    forward: result.out [rows, heads_q, head_dim_v], result.lse [rows, heads_q] (-inf, and out 0, in
    rows without keys) and, if given, result.max_logits [heads_q]. A pair that n slices show counts
    n times.

    backward: dq, dk, dv and, if given, dsink. result holds out and lse over all keys of a row,
    which may be more than the problem's: a pair weighs exp(score - lse).

    out and gradients have the type of q or, where limits.has_float_outputs, float32 as well. The
    library refuses by name what the limits exclude. ValueError for a name that is taken ("ffa" and
    "cutedsl" are) and for limits that cannot be; errors of the functions leave the call that made
    them.
    """
    for argument, value in (("forward", forward), ("backward", backward)):
        if not callable(value):
            raise TypeError(f"{argument} is a {type(value).__name__}; allowed: a function")
    check_kind("name", name, str, "a str")
    if name in OWN:
        raise ValueError(f"name is {name!r}, the library's own backend; allowed: another name")
    limits = Limits() if limits is None else limits
    check_kind("limits", limits, Limits, "Limits, or None")
    if not devices or any(device not in _DEVICES for device in devices):
        raise ValueError(f"devices is {devices!r}; allowed: of {_DEVICES}, one or both")
    backend = native.SuppliedBackend(prepare or (lambda problem: problem), forward, backward)
    table = backend.table(name, tuple(devices), limits)
    check(lib.magi_attention_backend_register(table.address))
    native.note_registration(name)
    _registered.add(name)
    _supplied.append(table)


def unregister(name: str) -> None:
    """Takes a supplied backend out; bound plans that use it go on. ValueError for another name."""
    check_kind("name", name, str, "a str")
    check(lib.magi_attention_backend_unregister(name.encode()))
    _registered.discard(name)


def is_registered(name: str) -> bool:
    """Whether a backend was supplied under this name."""
    return name in _registered


def is_known(name: str) -> bool:
    """Whether the library has a backend of this name, supplied by any language."""
    try:
        native.limits_of(name, CPU_DEVICE)
    except ValueError as error:
        return not str(error).startswith("backend is ")  # else it does not serve the device
    return True


def limits(backend: str | None = None, device: torch.device | str = "cpu") -> Limits:
    """Returns what a backend takes; None, "ffa": the library's own for the device. ValueError for
    another name and for a device that the backend does not serve.
    """
    backend = None if backend in OWN else backend
    place = torch.device(device)
    if place.type == "cpu":
        return native.limits_of(backend, CPU_DEVICE)
    index = torch.cuda.current_device() if place.index is None else place.index
    return native.limits_of(backend, index)
