# SPDX-License-Identifier: Apache-2.0
"""Device memory of calls over ranks, and what attention leaves to exchanges; a fake of torch's
allocator and of the library's function stand in for a GPU.
"""

import ctypes
import gc

import pytest
import torch

import margin_cases
from magi_attention._native import allocator
from magi_attention._native.allocator import TORCH_ALLOCATOR, AttentionHandle, AttentionOptions
from magi_attention._native.library import lib
from magi_attention._native.vtable import Communicator
from test_api_helpers import make_plan


@pytest.fixture
def given(monkeypatch):
    """The options of magi_attention_create_with, copied while the call runs."""
    seen = {}

    def create(plan, communicator, options, attention):
        read = AttentionOptions.from_address(options)
        table = read.allocator.contents
        seen["sizes"] = read.struct_size, table.struct_size
        seen["exchange_sms"] = read.exchange_sms
        seen["allocate"] = ctypes.cast(table.allocate, ctypes.c_void_p).value
        seen["release"] = ctypes.cast(table.release, ctypes.c_void_p).value
        return lib.magi_attention_create(plan, communicator, attention)

    class Library:
        magi_attention_options_init = lib.magi_attention_options_init
        magi_attention_create_with = staticmethod(create)

    lib.magi_attention_create.argtypes = [ctypes.c_void_p] * 3
    monkeypatch.setattr(allocator, "lib", Library)
    return seen


def make_handle(exchange_sms):
    return AttentionHandle(make_plan(cp_size=1).handle, Communicator.alone(), exchange_sms, None)


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


def test_functions_outlive_every_attention(given, monkeypatch):
    """The addresses that the library keeps stay those of live functions."""
    taken, given_back = [], []

    def allocate(size, stream):
        if size > 100:
            raise torch.OutOfMemoryError("no memory")
        taken.append((size, stream))
        return 4096

    monkeypatch.setattr(allocator, "_raw_allocate", allocate)
    monkeypatch.setattr(allocator, "_raw_release", given_back.append)
    make_handle(None)
    gc.collect()
    allocate_again = allocator._ALLOCATE(given["allocate"])
    assert allocate_again(None, 64, 1, 77) == 4096
    assert allocate_again(None, 32, 0, None) == 4096
    assert allocate_again(None, 101, 0, None) is None
    allocator._RELEASE(given["release"])(None, 4096, 64, 1, 77)
    assert taken == [(64, 77), (32, 0)] and given_back == [4096]
    assert given["allocate"] == ctypes.cast(TORCH_ALLOCATOR.allocate, ctypes.c_void_p).value


@pytest.mark.parametrize("sms, error", [(-1, ValueError), ("3", TypeError), (1 << 21, ValueError)])
def test_exchange_sms_of_no_gpu(sms, error):
    with pytest.raises(error, match="exchange_sms is "):
        make_plan(cp_size=1).bind(exchange_sms=sms)


def test_exchange_sms_of_the_environment(monkeypatch):
    from magi_attention.env import comm

    assert comm.exchange_sms() == (None, None)
    monkeypatch.setenv("MAGI_ATTENTION_FFA_FORWARD_SM_MARGIN", "2")
    assert comm.exchange_sms() == (2, None)
    monkeypatch.setenv("MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN", "5")
    assert comm.exchange_sms() == (2, 5)
    monkeypatch.setenv("MAGI_ATTENTION_FFA_BACKWARD_SM_MARGIN", "no")
    with pytest.raises(ValueError, match="FFA_BACKWARD_SM_MARGIN is 'no'"):
        make_plan(cp_size=1).bind()


@pytest.mark.parametrize(
    "forward, backward, wanted",
    [("", "", [None]), ("3", "3", [3]), ("3", "5", [3, 5]), ("", "5", [None, 5])],
)
def test_margins_by_pass(ranks, forward, backward, wanted):
    ranks.run(2, margin_cases.by_pass, forward, backward, wanted)
