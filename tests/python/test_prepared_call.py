# SPDX-License-Identifier: Apache-2.0
"""What the module of calls hands to the library: functions of this test stand in for it."""

import ctypes
import sys

import pytest
import torch

from magi_attention._native.attention import Call, Options, Runner
from magi_attention._native.library import PreparedCall, address_of

P, INT32 = ctypes.c_void_p, ctypes.c_int32
QKV = ("q", "k", "v", "sink")


class Tensor(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("data", P), ("dtype", INT32), ("device", INT32)]
    _fields_ += [("rank", INT32), ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]


def structure(name: str, pointers: str, *others) -> type:
    fields = [("struct_size", ctypes.c_size_t)]
    fields += [(pointer, ctypes.POINTER(Tensor)) for pointer in pointers.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields + list(others)})


Inputs = structure(
    "Inputs", "q k v sink", ("scale", ctypes.c_double), ("softcap", ctypes.c_double),
    ("sink_layout", INT32), ("sm_margin", INT32), ("is_fast_backward", INT32),
    ("backend", ctypes.c_char_p),
)  # fmt: skip
Result = structure("Result", "out lse max_logits")
Workspace = structure("Workspace", "", ("data", P), ("size_bytes", ctypes.c_size_t))
Gradients = structure(
    "Gradients", "dout dlse dq dk dv dsink", ("workspace", ctypes.POINTER(Workspace))
)


def data_of(struct) -> dict:
    """Addresses by name; None for a pointer that is null."""
    found = {}
    for name, kind in struct._fields_:
        if kind is ctypes.POINTER(Tensor):
            pointer = getattr(struct, name)
            found[name] = pointer.contents.data if pointer else None
    return found


def _copy(struct: ctypes.Structure) -> ctypes.Structure:
    return type(struct).from_buffer_copy(struct)


class Stand:
    """Records its arguments and returns `status`."""

    def __init__(self, *kinds, status: int = 0) -> None:
        self.seen = []

        def call(*arguments):
            for value in arguments:  # structs live as long as the call: copies are kept
                is_struct = hasattr(value, "contents")
                self.seen.append(_copy(value.contents) if is_struct else value)
            self.data = [data_of(s) for s in self.seen if isinstance(s, ctypes.Structure)]
            given = [s.workspace for s in self.seen if isinstance(s, Gradients)]
            self.workspaces = [
                (w.contents.data, w.contents.size_bytes) if w else None for w in given
            ]
            return status

        types = [P if kind is P else ctypes.POINTER(kind) for kind in kinds]
        self._callback = ctypes.CFUNCTYPE(INT32, *types)(call)
        self.address = ctypes.cast(self._callback, P).value


NAME = ctypes.create_string_buffer(b"a backend")


def prepared(forward, backward, has_sink=True, with_max_logits=True, options=Options()):
    q, k, v = torch.zeros(5, 4, 8), torch.zeros(6, 2, 8), torch.zeros(6, 2, 16)
    runner = Runner(forward, backward, 77, None, backend=NAME)
    options = options._replace(with_max_logits=with_max_logits)
    return Call(runner, q, k, v, torch.zeros(3, 4) if has_sink else None, options)._prepared


def test_forward():
    stand = Stand(P, Inputs, Result, P, status=42)
    options = Options(0.5, 3.0, 1, True, 6, True)
    assert prepared(stand.address, 0, options=options).forward(*range(1, 9)) == 42
    handle, inputs, _, stream = stand.seen
    assert (handle, stream) == (77, 8)
    assert stand.data == [dict(zip(QKV, (1, 2, 3, 4))), {"out": 5, "lse": 6, "max_logits": 7}]
    given = (inputs.scale, inputs.softcap, inputs.sink_layout, inputs.sm_margin)
    assert given == (0.5, 3.0, 1, 6) and inputs.is_fast_backward == 1
    assert inputs.struct_size == ctypes.sizeof(Inputs) and inputs.backend == b"a backend"


def test_shapes_of_tensors():
    shapes = {}

    def look(handle, inputs, result, stream):
        for struct in (inputs.contents, result.contents):
            for name in data_of(struct):
                tensor = getattr(struct, name).contents
                size = tensor.struct_size, tensor.rank, tensor.device
                shapes[name] = (*size, tensor.shape[: tensor.rank], tensor.stride[: tensor.rank])
        return 0

    types = ctypes.POINTER(Inputs), ctypes.POINTER(Result)
    callback = ctypes.CFUNCTYPE(INT32, P, *types, P)(look)
    prepared(ctypes.cast(callback, P).value, 0).forward(*range(1, 9))
    size = ctypes.sizeof(Tensor)
    assert shapes["k"] == (size, 3, -1, [6, 2, 8], [16, 8, 1])
    assert shapes["sink"] == (size, 2, -1, [3, 4], [4, 1])
    assert shapes["out"] == (size, 3, -1, [5, 4, 16], [64, 16, 1])
    assert shapes["max_logits"] == (size, 1, -1, [4], [1])


def test_forward_without_optional_tensors():
    stand = Stand(P, Inputs, Result, P)
    prepared(stand.address, 0, False, False).forward(1, 2, 3, 0, 5, 6, 0, 0)
    assert stand.data[0]["sink"] is None and stand.data[1]["max_logits"] is None
    assert stand.seen[3] is None  # the default stream


@pytest.mark.parametrize("has_all", [False, True])
def test_backward(has_all):
    stand = Stand(P, Inputs, Result, Gradients, P)
    given = list(range(1, 16))
    if not has_all:
        given[3] = given[7] = given[11] = given[12] = given[13] = 0
    assert prepared(0, stand.address, has_all).backward(*given) == 0
    inputs, result, gradients = stand.data
    names = ("dout", "dlse", "dq", "dk", "dv", "dsink")
    wanted = (7, 8, 9, 10, 11, 12) if has_all else (7, None, 9, 10, 11, None)
    assert gradients == dict(zip(names, wanted))
    assert inputs == dict(zip(QKV, (1, 2, 3, 4 if has_all else None)))
    assert result == {"out": 5, "lse": 6, "max_logits": None}
    assert stand.workspaces == [(13, 14) if has_all else None]
    assert (stand.seen[0], stand.seen[4]) == (77, 15)


def test_tensors_are_taken_for_their_addresses():
    stand = Stand(P, Inputs, Result, P)
    tensors = [torch.zeros(2) for _ in range(6)]
    at = [tensor.data_ptr() for tensor in tensors]
    prepared(stand.address, 0).forward(*tensors[:3], None, tensors[4], at[5], None, 8)
    assert stand.data[0] == {**dict(zip(QKV, at[:3])), "sink": None}
    assert stand.data[1] == {"out": at[4], "lse": at[5], "max_logits": None}
    stand = Stand(P, Inputs, Result, Gradients, P)
    memory = torch.zeros(14, dtype=torch.uint8)
    prepared(0, stand.address).backward(*tensors, *reversed(tensors), memory, 14, 0)
    names = ("dout", "dlse", "dq", "dk", "dv", "dsink")
    assert stand.data[2] == dict(zip(names, reversed(at)))
    assert stand.workspaces == [(memory.data_ptr(), 14)]


def test_tensors_without_memory():
    """Errors name the tensor, and the library is not called; no elements need no memory."""
    stand = Stand(P, Inputs, Result, Gradients, P)
    call = prepared(0, stand.address)
    gone = torch.zeros(2, device="meta")
    for place, name in ((1, "k"), (5, "lse"), (6, "the gradient of out"), (11, "dsink")):
        given = [torch.zeros(2) for _ in range(12)]
        given[place] = gone
        with pytest.raises(ValueError, match=f"^{name} has shape .* and no memory"):
            call.backward(*given, None, 0, 0)
    assert not stand.seen
    assert call.backward(*[torch.zeros(0)] * 12, None, 0, 0) == 0 and len(stand.seen) == 5


def test_sizes_and_ranges():
    call = prepared(0, 0, with_max_logits=True)
    ranges = Stand(P, Inputs, P)
    assert call.ranges_bytes(ranges.address, 5, 9) == 0
    assert (ranges.seen[0], ranges.seen[2]) == (5, 9)
    forward = Stand(P, Inputs, Result, P, P)
    assert call.ranges_forward(forward.address, 21, 22, *range(1, 9)) == 0
    assert (forward.seen[0], forward.seen[3], forward.seen[4]) == (21, 22, 8)
    assert forward.data == [dict(zip(QKV, (1, 2, 3, 4))), {"out": 5, "lse": 6, "max_logits": 7}]


def test_backward_under_ranges():
    size = Stand(P, Inputs, Result, Gradients, P, status=3)
    call = prepared(0, 0)
    assert call.ranges_backward_bytes(size.address, 21, 9) == 3
    assert (size.seen[0], size.seen[4]) == (21, 9)
    stand = Stand(P, Inputs, Result, Gradients, P)
    assert call.ranges_backward(stand.address, 21, *range(1, 16)) == 0
    assert stand.data[2]["dout"] == 7 and stand.workspaces == [(13, 14)]
    assert (stand.seen[0], stand.seen[4]) == (21, 15)


def test_wrong_arguments():
    functions = [address_of("magi_flex_attention_forward")] * 2 + [0, 0]
    with pytest.raises(ValueError, match="tensors has 5 bytes; allowed: 1248"):
        PreparedCall(bytes(5), 0.0, 0.0, 0, 0, False, False, False, *functions)
    call = PreparedCall(bytes(13 * 96), 0.0, 0.0, 0, 0, False, False, False, *functions)
    with pytest.raises(TypeError, match="1 arguments are given; allowed: 8"):
        call.forward(0)
    with pytest.raises(TypeError):
        call.forward(*[0] * 7, "8")
    with pytest.raises(AttributeError, match="data_ptr"):
        call.forward("1", *[0] * 7)
    with pytest.raises(OverflowError):
        call.forward(*[-1] * 8)
    assert call.forward(*[0] * 8) == 1  # MAGI_INVALID_ARGUMENT: no mask
    assert sys.modules[PreparedCall.__module__].__file__.endswith("_calls.abi3.so")


def test_calls_that_are_kept_hold_no_memory():
    tensors = [torch.zeros(3, 2, 8) for _ in QKV[:3]]
    call = Call(Runner(0, 0, 0, None), *tensors, None, Options())
    kept = [t for t in vars(call).values() if isinstance(t, torch.Tensor)]
    assert [t.untyped_storage().nbytes() for t in kept] == [0]
    assert [t.shape for t in call._results(tensors[0])[:2]] == [(3, 2, 8), (3, 2)]


def test_objects_are_freed():
    """Types of a limited API are reference counted by their objects."""
    kind = PreparedCall
    before = sys.getrefcount(kind)
    calls = [prepared(0, 0) for _ in range(100)]
    assert sys.getrefcount(kind) >= before + 100
    del calls
    assert sys.getrefcount(kind) <= before + 1
