# SPDX-License-Identifier: Apache-2.0
"""Device memory of calls over ranks, and what attention leaves to exchanges; a fake of torch's
allocator and of the library's function stand in for a GPU.
"""

from __future__ import annotations

import ctypes
import gc
import os
from unittest import mock

import pytest
import torch

import dense
from magi_attention._native import allocator, attention
from magi_attention._native.allocator import TORCH_ALLOCATOR, AttentionHandle, AttentionOptions
from magi_attention._native.attention import TENSOR
from magi_attention._native.library import PreparedCall, lib, use_allocator
from magi_attention._native.vtable import Communicator
from magi_attention.env import comm
from magi_attention.functional import _rank_attention
from pipeline_cases import Case, check_attention, make_key, make_tensors
from ranks import over
from test_api_helpers import make_plan
from test_prepared_call import Gradients

MARGINS = ("MAGI_ATTENTION_FFA_FORWARD_SM_MARGIN", "MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN")


@over(2)
@pytest.mark.parametrize(
    "forward, backward, wanted",
    [("", "", [None]), ("3", "3", [3]), ("3", "5", [3, 5]), ("", "5", [None, 5])],
)
def test_margins_by_pass(group, forward: str, backward: str, wanted: list):
    """Each pass has the margin of its variable, and results are what they are without."""
    case, made = Case(rows=131), []

    class Seen(AttentionHandle):
        def __init__(self, handle, communicator, exchange_sms, *others):
            made.append(exchange_sms)
            super().__init__(handle, communicator, exchange_sms, *others)

    for name, value in zip(MARGINS, (forward, backward)):
        if value:
            os.environ[name] = value
    with mock.patch.object(_rank_attention, "AttentionHandle", Seen):
        key = make_key(dense.masks(131)["causal"], case, group)
        check_attention("causal", key, dense.masks(131)["causal"], case, make_tensors(case))
    assert made == wanted, made


@pytest.fixture
def given(monkeypatch):
    """The options of magi_attention_create_with, copied while the call runs."""
    seen = {}

    def create(plan, communicator, options, attention):
        read = AttentionOptions.from_address(options)
        table = read.allocator.contents
        seen["sizes"] = read.struct_size, table.struct_size
        seen["exchange_sms"] = read.exchange_sms
        seen["are_partials_rounded"] = read.are_partials_rounded
        seen["allocate"] = ctypes.cast(table.allocate, ctypes.c_void_p).value
        seen["release"] = ctypes.cast(table.release, ctypes.c_void_p).value
        return lib.magi_attention_create(plan, communicator, attention)

    class Library:
        magi_attention_options_init = lib.magi_attention_options_init
        magi_attention_create_with = staticmethod(create)

    lib.magi_attention_create.argtypes = [ctypes.c_void_p] * 3
    monkeypatch.setattr(allocator, "lib", Library)
    return seen


def make_handle(exchange_sms, *rounding):
    plan = make_plan(cp_size=1).handle
    return AttentionHandle(plan, Communicator.alone(), exchange_sms, None, *rounding)


def test_options_that_the_library_is_given(given):
    default = AttentionOptions()
    lib.magi_attention_options_init(default.address)
    make_handle(None)
    assert given["sizes"] == (
        ctypes.sizeof(AttentionOptions),
        ctypes.sizeof(allocator.DeviceAllocator),
    )
    assert given["exchange_sms"] == default.exchange_sms > 0
    make_handle(3)
    assert given["exchange_sms"] == 3
    assert given["are_partials_rounded"] == 0
    make_handle(3, True)
    assert given["are_partials_rounded"] == 1


@pytest.mark.parametrize(
    ("variables", "is_rounding"),
    [
        ({}, False),
        ({"BACKWARD_HIGH_PRECISION_REDUCE": "1"}, False),
        ({"BACKWARD_HIGH_PRECISION_REDUCE": "0"}, True),
        ({"FORWARD_HIGH_PRECISION_REDUCE": "0"}, False),
    ],
)
def test_the_environment_asks_for_rounded_partials(monkeypatch, variables, is_rounding):
    for name, value in variables.items():
        monkeypatch.setenv("MAGI_ATTENTION_" + name, value)
    assert comm.rounds_partial_gradients() is is_rounding


def test_rounded_partials_are_asked_for_by_a_bool():
    with pytest.raises(TypeError, match="rounded_partials"):
        make_plan(cp_size=1).bind(rounded_partials=1)


class FakeTorch:
    """Memory of the GPU `device`, up to 100 bytes at a time; addresses are multiples of 4096."""

    def __init__(self) -> None:
        self.device = 0
        self.taken, self.given_back = [], []

    def allocate(self, size: int, stream: int) -> int:
        if size > 100:
            raise torch.OutOfMemoryError("no memory")
        self.taken.append((size, stream))
        return 4096 * len(self.taken)


@pytest.fixture
def fake_torch():
    fake = FakeTorch()
    use_allocator(fake.allocate, fake.given_back.append, lambda: fake.device)
    yield fake
    use_allocator(allocator.raw_allocate, allocator.raw_release, allocator.current_device)


def test_functions_outlive_every_attention(given, fake_torch):
    """The addresses that the library keeps stay those of live functions."""
    make_handle(None)
    gc.collect()
    allocate_again = allocator._ALLOCATE(given["allocate"])
    assert allocate_again(None, 64, 1, 77) == 4096
    assert allocate_again(None, 32, 0, None) == 8192
    assert allocate_again(None, 101, 0, None) is None
    allocator._RELEASE(given["release"])(None, 4096, 64, 1, 77)
    assert fake_torch.taken == [(64, 77), (32, 0)] and fake_torch.given_back == [4096]
    assert given["allocate"] == ctypes.cast(TORCH_ALLOCATOR.allocate, ctypes.c_void_p).value


class Caller:
    """A prepared call on GPU 0 whose library takes memory of `sizes` on stream 5 in turn, and gives
    it back, at the end or in_turn; `got`: the addresses.
    """

    def __init__(self, in_turn: bool = False) -> None:
        self.in_turn = in_turn
        self.sizes: list[int] = []
        self.got: list[int | None] = []
        pointers = [ctypes.c_void_p] * 4
        self._forward = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers)(self._run)
        self._backward = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, ctypes.c_void_p)(self._run)
        functions = [ctypes.cast(f, ctypes.c_void_p).value for f in (self._forward, self._backward)]
        buffer = bytearray(13 * TENSOR.size)
        TENSOR.pack_into(buffer, 0, TENSOR.size, 0, 3, 0, 1, *[1] * 8)
        self.prepared = PreparedCall(
            bytes(buffer), 0.0, 0.0, 0, 0, False, False, False, *functions, 0, 0
        )

    def _run(self, *_arguments) -> int:
        self.got = []
        for size in self.sizes:
            self.got.append(TORCH_ALLOCATOR.allocate(None, size, 0, 5))
            if self.in_turn:
                TORCH_ALLOCATOR.release(None, self.got[-1], size, 0, 5)
        for address, size in zip(self.got, self.sizes):
            if address and not self.in_turn:
                TORCH_ALLOCATOR.release(None, address, size, 0, 5)
        return 0

    def forward(self, *sizes: int, stream: int = 5) -> None:
        self.sizes = list(sizes)
        self.prepared.forward(*[0] * 7, stream)

    def backward(self, *sizes: int) -> None:
        self.sizes = list(sizes)
        self.prepared.backward(*[0] * 14, 5)


def test_a_call_is_lent_what_the_one_before_asked_for(fake_torch):
    caller = Caller()
    caller.forward(64, 32)
    assert caller.got == [4096, 8192] and fake_torch.taken == [(64, 5), (32, 5)]
    assert fake_torch.given_back == [4096, 8192]
    caller.forward(48, 32)  # as much as is asked for first, or less, was taken before
    assert caller.got == [3 * 4096, 4 * 4096] and fake_torch.taken[2:] == [(64, 5), (32, 5)]
    caller.backward(80)  # has a size of its own
    assert caller.got == [5 * 4096] and fake_torch.taken[4:] == [(80, 5)]
    assert sorted(fake_torch.given_back) == [4096 * i for i in range(1, 6)]


def test_what_is_lent_and_not_taken_goes_back(fake_torch):
    caller = Caller()
    caller.forward(64)
    caller.forward(80)  # more than is lent
    assert caller.got == [3 * 4096] and sorted(fake_torch.given_back) == [4096, 8192, 3 * 4096]
    caller.forward()
    assert fake_torch.taken[3:] == [(80, 5)] and fake_torch.given_back[3:] == [4 * 4096]
    caller.forward()  # the call before asked for none
    assert len(fake_torch.taken) == len(fake_torch.given_back) == 4


def test_nothing_is_lent_to_calls_on_another_gpu_or_stream(fake_torch):
    caller = Caller()
    caller.forward(64)
    caller.forward(64, stream=6)
    assert fake_torch.taken[1:] == [(64, 6), (64, 5)] and len(fake_torch.given_back) == 3
    fake_torch.device = 1  # the library makes GPU 0 the current one before it asks
    caller.forward(64)
    assert fake_torch.taken[3:] == [(64, 5)] and caller.got == [4 * 4096]
    assert len(fake_torch.given_back) == 4


def test_sections_of_a_call_take_the_same_memory(fake_torch):
    caller = Caller(in_turn=True)
    caller.forward(64, 64, 32)
    assert caller.got == [4096] * 3 and fake_torch.taken == [(64, 5)]
    caller.forward(64, 64, 32)
    assert caller.got == [8192] * 3 and fake_torch.given_back == [4096, 8192]


def test_memory_that_is_not_there(fake_torch):
    caller = Caller()
    for _ in range(2):
        caller.forward(101, 1)
        assert caller.got[0] is None and caller.got[1] is not None
    assert len(fake_torch.taken) == len(fake_torch.given_back) == 2


def test_more_blocks_than_a_call_keeps(fake_torch):
    caller = Caller()
    for _ in range(2):
        caller.forward(*range(1, 21))
    assert sorted(fake_torch.given_back) == [4096 * i for i in range(1, 41)]


class BackwardOnGpu:
    """The backward of a call on GPU 0, stream 5, with a workspace of 64 bytes, whose library fails
    where asked; `workspaces`: what it was given.
    """

    def __init__(self, fake: FakeTorch, monkeypatch) -> None:
        self.status = 0
        self.workspaces: list[tuple[int, int, int]] = []
        monkeypatch.setattr(attention, "current_device", lambda: fake.device)
        monkeypatch.setattr(attention, "_raw_stream", lambda index: 5)
        self.tensors = [torch.zeros(4, 2, 8) for _ in "qkv"]
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 5)(self._run)
        function = ctypes.cast(self._function, ctypes.c_void_p).value
        runner = attention.Runner(attention.flex_forward, function, 0, None)
        self._call = attention.Call(runner, *self.tensors, None, attention.Options())
        self._call._device, self._call._num_bytes = 0, 64

    def _run(self, _handle, _inputs, _result, gradients, stream) -> int:
        workspace = Gradients.from_address(gradients).workspace.contents
        self.workspaces.append((workspace.data, workspace.size_bytes, stream))
        return self.status

    def run(self, dout: torch.Tensor) -> None:
        out, lse = torch.zeros(4, 2, 8), torch.zeros(4, 2)
        self._call.backward(dout, None, *self.tensors, out, lse, None)


def test_the_workspace_of_a_backward_is_taken_and_given_back(fake_torch, monkeypatch):
    call = BackwardOnGpu(fake_torch, monkeypatch)
    call.run(torch.zeros(4, 2, 8))
    assert fake_torch.taken == [(64, 5)] and fake_torch.given_back == [4096]
    call.status = 2
    with pytest.raises(RuntimeError):
        call.run(torch.zeros(4, 2, 8))
    assert call.workspaces == [(4096, 64, 5), (8192, 64, 5)]
    assert fake_torch.given_back == [4096, 8192]
    with pytest.raises(ValueError, match="the gradient of out"):  # before anything is taken
        call.run(torch.zeros(4, 2, 8, device="meta"))
    assert len(call.workspaces) == len(fake_torch.taken) == 2


def test_a_workspace_for_which_there_is_no_memory(fake_torch, monkeypatch):
    call = BackwardOnGpu(fake_torch, monkeypatch)
    call._call._num_bytes = 101
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        call.run(torch.zeros(4, 2, 8))
    assert not call.workspaces and not fake_torch.given_back


def test_the_workspace_on_another_gpu_is_a_tensor(fake_torch, monkeypatch):
    call = BackwardOnGpu(fake_torch, monkeypatch)
    fake_torch.device = 1
    call.run(torch.zeros(4, 2, 8))
    ((address, size, stream),) = call.workspaces
    assert address and (size, stream) == (64, 5) and not fake_torch.taken


@pytest.mark.parametrize("sms, error", [(-1, ValueError), ("3", TypeError), (1 << 21, ValueError)])
def test_exchange_sms_of_no_gpu(sms, error):
    with pytest.raises(error, match="exchange_sms is "):
        make_plan(cp_size=1).bind(exchange_sms=sms)


def test_exchange_sms_with_kernels_that_leave_none():
    plan = make_plan(cp_size=1)
    with pytest.raises(ValueError, match="exchange_sms is 4 with backend torch, whose kernels"):
        plan.bind(exchange_sms=4, backend="torch")
    for sms in (None, 0):
        plan.bind(exchange_sms=sms, backend="torch")


def test_exchange_sms_of_the_environment(monkeypatch):
    assert comm.exchange_sms() == (None, None)
    monkeypatch.setenv("MAGI_ATTENTION_FFA_FORWARD_SM_MARGIN", "2")
    assert comm.exchange_sms() == (2, None)
    monkeypatch.setenv("MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN", "5")
    assert comm.exchange_sms() == (2, 5)
    monkeypatch.setenv("MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN", "no")
    with pytest.raises(ValueError, match="FFA_BACKWARD_SM_MARGIN is 'no'"):
        make_plan(cp_size=1).bind()
