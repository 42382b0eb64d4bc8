# SPDX-License-Identifier: Apache-2.0
"""The backend that the environment chooses."""

from __future__ import annotations

import functools

import torch

from magi_attention._environment import PREFIX, is_set
from magi_attention.backends import _fa4, _registry, _table
from magi_attention.backends import limits as backend_limits
from magi_attention.common._arguments import check_kind
from magi_attention.env import general

FA4 = _fa4.NAME
_VARIABLES = tuple(PREFIX + name for name in ("KERNEL_BACKEND", "SDPA_BACKEND", "FA4_BACKEND"))


def backend_of_environment() -> str | None:
    """The backend that MAGI_ATTENTION_KERNEL_BACKEND asks for; None: the library's own.
    RuntimeError where it does not serve this machine, ValueError where it cannot do what
    MAGI_ATTENTION_DETERMINISTIC_MODE asks for.
    """
    if not any(map(is_set, _VARIABLES)):
        return None
    name = _table.chosen_by(general.kernel_backend().value)
    if general.is_deterministic_mode_enable():
        check_repeatable(name, "MAGI_ATTENTION_DETERMINISTIC_MODE is 1")
    return name


# torch.compiler.assume_constant_result would load torch's compiler (see known_limits).
backend_of_environment._dynamo_marked_constant = True


def chosen_backend(backend: str | None) -> str | None:
    """The backend of this name, ready for use; None: that of the environment. The result is None
    for the library's own ("ffa"). RuntimeError and ValueError as backend_of_environment, and
    ValueError for a name that no backend has.
    """
    if backend is None:
        return backend_of_environment()
    check_kind("backend", backend, str, "a str, or None")
    return _table.chosen_by(backend)


def check_repeatable(name: str | None, told: str) -> None:
    """ValueError for a backend whose gradients differ in their last bits from call to call."""
    if not _table.is_repeatable(name):
        raise ValueError(f"{told} with backend {name}, whose gradients do not repeat; allowed: off")


def fa4_takes(dtype: torch.dtype | None, device: torch.device | None) -> bool:
    """Whether FlashAttention-4 serves this process's GPU and takes tensors of this kind; None: of
    what is no tensor.
    """
    if device is None or not (_registry.is_registered(FA4) or _serves_here(FA4)):
        return False
    _table.ensure(FA4)
    try:
        limits = backend_limits(FA4, device)
    except ValueError:  # not on this device
        return False
    return dtype in limits.dtypes


@functools.cache
def _serves_here(name: str) -> bool:
    return _table.is_usable(name)


fa4_takes._dynamo_marked_constant = True
