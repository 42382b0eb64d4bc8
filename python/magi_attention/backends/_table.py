# SPDX-License-Identifier: Apache-2.0
"""Which backends there are, which GPUs they serve, and what stands in their way on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch

from magi_attention._native.library import gpu_architectures, version
from magi_attention.backends import _cudnn, _fa4, _flex, _registry, torch_attention
from magi_attention.backends._registry import MMA


class _Offer(NamedTuple):
    """A backend that the package can register: what chooses it, distribution and module of the
    kernels, the GPUs that these serve in words and as a condition on (major, minor), what registers
    it.
    """

    values: tuple[str, ...]
    distribution: str
    module: str
    gpus: str
    serves: Callable[[tuple[int, int]], bool]
    register: Callable[[], None]
    serves_cpu: bool = False
    is_repeatable: bool = True  # gradients can have the same bits in every call


_OFFERS = {
    _fa4.NAME: _Offer(
        ("fa4",), _fa4.PACKAGE, _fa4.MODULE, "9.x, 10.x, 11.x",
        lambda found: found[0] in _fa4.MAJORS, _fa4.register, is_repeatable=False,
    ),
    _cudnn.NAME: _Offer(
        ("cudnn",), _cudnn.PACKAGE, _cudnn.MODULE, "9.0, 10.0, 10.3",
        lambda found: found in _cudnn.CAPABILITIES, _cudnn.register,
    ),
    _flex.NAME: _Offer(
        ("flex",), "triton", "triton", "7.5 or later",
        lambda found: found >= _flex.LEAST_CAPABILITY, _flex.register, is_repeatable=False,
    ),
    torch_attention.NAME: _Offer(
        ("sdpa", "sdpa_ol"), "torch", "torch", "any", lambda found: True, torch_attention.register,
        serves_cpu=True,
    ),
}  # fmt: skip
_BY_VARIABLE = {value: name for name, offer in _OFFERS.items() for value in offer.values}


class Row(NamedTuple):
    """A backend. name: what Plan.bind calls it, "ffa" the library's own. values: those of
    MAGI_ATTENTION_KERNEL_BACKEND that choose it. package: the distribution that holds its kernels,
    version: of the installed one, or "". gpus: compute capabilities that it serves. devices: those
    of this machine that it serves, such as ("cpu", "cuda:0"). reason: why no GPU is among them, in
    a sentence, or "".
    """

    name: str
    values: tuple[str, ...]
    package: str
    version: str
    gpus: str
    devices: tuple[str, ...]
    reason: str


def table() -> list[Row]:
    """The backends that MAGI_ATTENTION_KERNEL_BACKEND can choose, the library's own first. Nothing
    is loaded or compiled.
    """
    found = _capabilities()
    own = tuple(f"cuda:{i}" for i, one in enumerate(found) if _own_serves(one))
    about = "magi", version(), _OWN_GPUS
    rows = [
        Row(_registry.OWN[0], _registry.OWN, *about, ("cpu", *own), _own_reason()),
        Row(MMA, (MMA,), *about, own, _own_reason()),
    ]
    for name, offer in _OFFERS.items():
        reason = _reason(offer)
        served = [f"cuda:{i}" for i, one in enumerate(found) if not reason and offer.serves(one)]
        devices = ("cpu", *served) if offer.serves_cpu else tuple(served)
        package = offer.distribution, _version(offer.distribution)
        rows.append(Row(name, offer.values, *package, offer.gpus, devices, reason))
    return rows


def chosen_by(name: str) -> str | None:
    """The backend of this name, ready for use: a value of MAGI_ATTENTION_KERNEL_BACKEND, a name of
    the table, or a backend that was registered; None: the library's own. RuntimeError as ensure,
    ValueError for other names.
    """
    if name in _registry.OWN:
        return None
    if _registry.is_registered(name):
        return name
    found = _BY_VARIABLE.get(name, name)
    if found == MMA and _own_reason():
        _refuse(found, _own_reason())
    ensure(found)
    if not _registry.is_known(found):
        names = ", ".join((*_registry.OWN, MMA, *_BY_VARIABLE))
        raise ValueError(
            f"backend is {name!r}; allowed: {names}, or one that you registered; try: python -m "
            "magi_attention, which tells what serves this machine"
        )
    return found


def ensure(name: str | None) -> None:
    """Registers a backend of the table at its first use; other names stay as they are. RuntimeError
    that says why, where it serves nothing here.
    """
    offer = _OFFERS.get(name)
    if offer is None or _registry.is_registered(name):
        return
    reason = "" if offer.serves_cpu else _reason(offer)
    if reason:
        _refuse(name, reason)
    offer.register()


def _refuse(name: str, reason: str) -> NoReturn:
    usable = [row.values[0] for row in table() if row.devices]
    raise RuntimeError(f"backend is {name}, but {reason}; allowed: {', '.join(usable)}")


def refuse_margin(argument: str, margin: int, name: str | None) -> None:
    """ValueError for multiprocessors that kernels of another package would leave to exchanges."""
    if name in _OFFERS:
        raise ValueError(
            f"{argument} is {margin} with backend {name}, whose kernels leave no multiprocessors "
            "to exchanges; allowed: None, or 0"
        )


def is_usable(name: str) -> bool:
    """Whether ensure(name) would raise nothing, for a name of the table."""
    offer = _OFFERS[name]
    return _registry.is_registered(name) or offer.serves_cpu or not _reason(offer)


def is_repeatable(name: str | None) -> bool:
    """Whether gradients by a backend can have the same bits in every call."""
    return name not in _OFFERS or _OFFERS[name].is_repeatable


_OWN_GPUS = "8.0 or later"


def _own_serves(capability: tuple[int, int]) -> bool:
    return capability >= (8, 0) and gpu_architectures() != ""


def _own_reason() -> str:
    """Why the library's own kernels serve no GPU of this process, or ""."""
    found = _capabilities()
    if any(map(_own_serves, found)):
        return ""
    if any(one >= (8, 0) for one in found):
        return "this library holds no kernels for GPUs"
    return _missing_gpu(found, _OWN_GPUS)


def _reason(offer: _Offer) -> str:
    """Why a backend serves no GPU of this process, or ""."""
    if not _is_installed(offer.module):
        return f"{offer.distribution} is not installed"
    found = _capabilities()
    return "" if any(map(offer.serves, found)) else _missing_gpu(found, offer.gpus)


def _missing_gpu(found: list[tuple[int, int]], gpus: str) -> str:
    if not found:
        return "this process sees no GPU"
    seen = ", ".join(sorted({f"{major}.{minor}" for major, minor in found}))
    return f"it serves GPUs of compute capability {gpus}, of which there are {seen} here"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # without its parent, or put there by hand
        return module in sys.modules


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _capabilities() -> list[tuple[int, int]]:
    """Returns the capabilities of the GPUs that this process sees."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
