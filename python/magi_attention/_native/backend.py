# SPDX-License-Identifier: Apache-2.0
"""Limits of attention backends, and a table of the C interface filled with functions of Python."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_int32, c_int64, c_void_p
from typing import Any, NamedTuple

import torch

from magi_attention._native.attention import DTYPE_CODES
from magi_attention._native.library import check, keep_end, lib, words_of
from magi_attention._native.structs import Sized, fields
from magi_attention._native.tensors import bytes_at

_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}
_OK, _INVALID_ARGUMENT, _INTERNAL_ERROR = 0, 1, 4
_MAX_RANK = 4


class _Tensor(ctypes.Structure):
    """magi_tensor."""

    _fields_ = fields(
        "z struct_size, p data, i dtype, i device, i rank, S shape, S stride", S=c_int64 * _MAX_RANK
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.shape[: self.rank])

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu") if self.device < 0 else torch.device("cuda", self.device)

    def view(self) -> torch.Tensor:
        """The memory as a tensor, not copied."""
        dtype = _DTYPES[self.dtype]
        if 0 in self.sizes:
            return torch.empty(self.sizes, dtype=dtype, device=self.torch_device)
        strides = tuple(self.stride[: self.rank])
        count = sum((n - 1) * step for n, step in zip(self.sizes, strides)) + 1
        flat = bytes_at(self.data, count * dtype.itemsize, self.torch_device)
        return flat.view(dtype).as_strided(self.sizes, strides)


_TensorPointer = POINTER(_Tensor)


class _Problem(ctypes.Structure):
    """magi_attention_problem."""

    _fields_ = fields(
        "z struct_size, t q, t k, t v, I slices, q num_slices, i is_backward, "
        "i is_deterministic, i sm_margin",
        t=_TensorPointer,
    )


class _Inputs(ctypes.Structure):
    """magi_attention_inputs."""

    _fields_ = fields(
        "z struct_size, t q, t k, t v, t sink, d softmax_scale, d softcap, i sink_layout, "
        "i sm_margin, i is_fast_backward, s backend",
        t=_TensorPointer,
    )


class _Result(ctypes.Structure):
    """magi_attention_result."""

    _fields_ = fields("z struct_size, t out, t lse, t max_logits", t=_TensorPointer)


class _Gradients(ctypes.Structure):
    """magi_attention_gradients."""

    _fields_ = fields(
        "z struct_size, t dout, t dlse, t dq, t dk, t dv, t dsink, p workspace", t=_TensorPointer
    )


class LimitsStruct(Sized):
    """magi_attention_limits."""

    _fields_ = fields(
        "z struct_size, i min_dim_qk, i max_dim_qk, i dim_qk_multiple, i min_dim_v, "
        "i max_dim_v, i dim_v_multiple, i dtypes, i stride_bytes, i has_float_outputs, "
        "i has_sink, i has_softcap, i has_max_logits, i has_dlse, i has_any_scale"
    )


_PLAN = CFUNCTYPE(c_int32, c_void_p, POINTER(_Problem), POINTER(c_void_p))
_FORWARD = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(_Inputs), POINTER(_Result), c_void_p)
_BACKWARD = CFUNCTYPE(
    c_int32, c_void_p, c_void_p, POINTER(_Inputs), POINTER(_Result), POINTER(_Gradients), c_void_p
)
_RELEASE = CFUNCTYPE(None, c_void_p, c_void_p)
_LAST_ERROR = CFUNCTYPE(c_void_p, c_void_p)
_DESTROY = CFUNCTYPE(None, c_void_p)


class _Table(Sized):
    """magi_attention_backend."""

    _fields_ = fields(
        "z struct_size, p context, s name, i serves_cpu, i serves_gpu, L limits, P plan, "
        "F forward, B backward, R release, E last_error, D destroy",
        L=LimitsStruct, P=_PLAN, F=_FORWARD, B=_BACKWARD, R=_RELEASE, E=_LAST_ERROR, D=_DESTROY,
    )  # fmt: skip


class Limits(NamedTuple):
    """The limits of a backend. Head dims: least, largest, and what they are multiples of."""

    head_dim_qk: tuple[int, int, int] = (1, 2**31 - 1, 1)
    head_dim_v: tuple[int, int, int] = (1, 2**31 - 1, 1)
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    stride_bytes: int = 1
    has_float_outputs: bool = False
    has_sink: bool = False
    has_softcap: bool = False
    has_max_logits: bool = False
    has_dlse: bool = False
    has_any_scale: bool = False


def _to_struct(limits: Limits) -> LimitsStruct:
    return LimitsStruct(
        **dict(zip(("min_dim_qk", "max_dim_qk", "dim_qk_multiple"), limits.head_dim_qk)),
        **dict(zip(("min_dim_v", "max_dim_v", "dim_v_multiple"), limits.head_dim_v)),
        dtypes=sum(1 << DTYPE_CODES[dtype] for dtype in limits.dtypes),
        stride_bytes=limits.stride_bytes,
        **{name: getattr(limits, name) for name in limits._fields if name.startswith("has_")},
    )


def _from_struct(given: LimitsStruct) -> Limits:
    return Limits(
        (given.min_dim_qk, given.max_dim_qk, given.dim_qk_multiple),
        (given.min_dim_v, given.max_dim_v, given.dim_v_multiple),
        tuple(dtype for code, dtype in _DTYPES.items() if given.dtypes >> code & 1),
        given.stride_bytes,
        *(bool(getattr(given, name)) for name in Limits._fields if name.startswith("has_")),
    )


_known_limits: dict[tuple[str | None, int], Limits] = {}


def known_limits(name: str | None, device_index: int) -> Limits:
    """limits_of, asked for once: bound plans use a backend after its name is unregistered."""
    key = name, device_index
    if key not in _known_limits:
        _known_limits[key] = limits_of(*key)
    return _known_limits[key]


# NOTE: torch.compiler.assume_constant_result sets this, after loading torch's compiler, for which
# programs that compile nothing would wait for seconds.
known_limits._dynamo_marked_constant = True


_registrations: dict[str, int] = {}


def registration_of(name: str | None) -> int:
    """Returns how often the name was given to a backend: what is kept for it is of one
    registration.
    """
    return _registrations.get(name, 0)


def note_registration(name: str) -> None:
    """Marks that a name gets a new backend: what is kept of another is not found again."""
    _registrations[name] = registration_of(name) + 1
    for key in [key for key in _known_limits if key[0] == name]:
        del _known_limits[key]


def limits_of(name: str | None, device_index: int) -> Limits:
    """Limits of a backend by its name; None: of the library's own for the device."""
    given = LimitsStruct()
    text = None if name is None else name.encode()
    check(lib.magi_attention_get_limits(text, device_index, given.address))
    return _from_struct(given)


class Problem(NamedTuple):
    """The problem that forward or backward will be called for. slices: int32 [slices, 6] in host
    memory, rows q begin, q end, k begin, k end, d_min, d_max: query i sees key j where d_min <= j -
    i <= d_max.
    """

    slices: torch.Tensor
    q_shape: tuple[int, int, int]
    k_shape: tuple[int, int, int]
    v_shape: tuple[int, int, int]
    dtype: torch.dtype
    device: torch.device
    is_backward: bool
    is_deterministic: bool
    sm_margin: int


class Inputs(NamedTuple):
    """Tensors that a call reads. sink_layout 0: sink [sinks, heads], 1: [rows, sinks, heads]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sink: torch.Tensor | None
    softmax_scale: float
    softcap: float
    sink_layout: int


class Result(NamedTuple):
    """The tensors that forward writes and backward reads."""

    out: torch.Tensor
    lse: torch.Tensor
    max_logits: torch.Tensor | None


class Gradients(NamedTuple):
    """dout and dlse, which backward reads, and what it writes."""

    dout: torch.Tensor
    dlse: torch.Tensor | None
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsink: torch.Tensor | None


def _optional(pointer) -> torch.Tensor | None:
    return pointer[0].view() if pointer else None


def _problem(given: _Problem) -> Problem:
    count = given.num_slices
    values = given.slices[: 6 * count] if count > 0 else []
    q, k, v = given.q[0], given.k[0], given.v[0]
    return Problem(
        torch.tensor(values, dtype=torch.int32, device="cpu").view(-1, 6),
        q.sizes, k.sizes, v.sizes, _DTYPES[q.dtype], q.torch_device,
        bool(given.is_backward), bool(given.is_deterministic), given.sm_margin,
    )  # fmt: skip


def _inputs(given: _Inputs) -> Inputs:
    q = given.q[0].view()
    return Inputs(
        q, given.k[0].view(), given.v[0].view(), _optional(given.sink),
        given.softmax_scale or q.shape[2] ** -0.5, given.softcap, given.sink_layout,
    )  # fmt: skip


def _result(given: _Result) -> Result:
    return Result(given.out[0].view(), given.lse[0].view(), _optional(given.max_logits))


def _gradients(given: _Gradients) -> Gradients:
    written = (getattr(given, name)[0].view() for name in ("dq", "dk", "dv"))
    return Gradients(given.dout[0].view(), _optional(given.dlse), *written, _optional(given.dsink))


def _on_stream(device: torch.device, stream: int | None):
    """torch's work goes to the stream; host memory has none."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    if not stream:  # torch would take 0 for "any stream of its pool"
        return torch.cuda.stream(torch.cuda.default_stream(device))
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device))


def _guarded(entry: Callable[..., None]) -> Callable[..., int]:
    """A function of the table that returns a status; its last_error tells what entry raised."""

    def call(self: SuppliedBackend, _context, *given) -> int:
        try:
            with torch.no_grad():
                entry(self, *given)
            return _OK
        except (ValueError, TypeError, NotImplementedError) as error:
            self._error.text = words_of(error)
            return _INVALID_ARGUMENT
        except BaseException as error:  # nothing may unwind into the library
            keep_end(error)
            self._error.text = words_of(error, is_named=True)
            return _INTERNAL_ERROR

    return call


class SuppliedBackend:
    """A table whose entries call functions of Python; lives as long as the process, since the
    library may call a backend after it was taken out.
    """

    def __init__(self, prepare: Callable, forward: Callable, backward: Callable) -> None:
        self._prepare, self._forward, self._backward = prepare, forward, backward
        self._prepared: dict[int, Any] = {}
        self._next = 1
        self._lock = threading.Lock()
        self._error = threading.local()

    def table(self, name: str, devices: tuple[str, ...], limits: Limits) -> _Table:
        return _Table(
            name=name.encode(), serves_cpu="cpu" in devices, serves_gpu="cuda" in devices,
            limits=_to_struct(limits), plan=_PLAN(self._plan_entry),
            forward=_FORWARD(self._forward_entry), backward=_BACKWARD(self._backward_entry),
            release=_RELEASE(self._release_entry), last_error=_LAST_ERROR(self._last_error_entry),
        )  # fmt: skip

    @_guarded
    def _plan_entry(self, problem, handle) -> None:
        prepared = self._prepare(_problem(problem[0]))
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._prepared[number] = prepared
        handle[0] = number

    @_guarded
    def _forward_entry(self, handle, inputs, result, stream) -> None:
        with _on_stream(inputs[0].q[0].torch_device, stream):
            self._forward(self._prepared[handle], _inputs(inputs[0]), _result(result[0]))

    @_guarded
    def _backward_entry(self, handle, inputs, result, gradients, stream) -> None:
        with _on_stream(inputs[0].q[0].torch_device, stream):
            given = _inputs(inputs[0]), _result(result[0]), _gradients(gradients[0])
            self._backward(self._prepared[handle], *given)

    def _release_entry(self, _context, handle) -> None:
        with self._lock:
            self._prepared.pop(handle, None)

    def _last_error_entry(self, _context) -> int:
        return ctypes.addressof(self._error.text)
