# SPDX-License-Identifier: Apache-2.0
"""Every description of magi_tensor against the one that the module of calls is compiled from."""

import ctypes
import struct

import pytest
import torch

from magi_attention._native import attention, vtable
from magi_attention._native.library import TENSOR_LAYOUT
from test_prepared_call import Tensor

FIELDS = ("struct_size", "data", "dtype", "device", "rank", "shape", "stride")
KINDS = ("N", "P", "i", "i", "i", "4q", "4q")


def test_packed_tensors():
    assert attention.TENSOR.format == "@" + "".join(KINDS)
    ends = [struct.calcsize("@" + "".join(KINDS[: i + 1])) for i in range(len(KINDS))]
    sizes = [struct.calcsize("@" + kind) for kind in KINDS]
    offsets = [end - size for end, size in zip(ends, sizes)]
    assert (attention.TENSOR.size, *offsets) == TENSOR_LAYOUT


@pytest.mark.parametrize("kind", [Tensor, vtable._Tensor])
def test_tensors_of_ctypes(kind):
    offsets = [getattr(kind, field).offset for field in FIELDS]
    assert (ctypes.sizeof(kind), *offsets) == TENSOR_LAYOUT


def test_values_of_a_packed_tensor():
    given = torch.zeros(3, 4, 5).transpose(0, 1)
    packed = attention.TensorStruct(given)
    found = Tensor.from_address(packed.address)
    assert (found.struct_size, found.data) == (TENSOR_LAYOUT[0], given.data_ptr())
    assert (found.dtype, found.device, found.rank) == (1, -1, 3)
    assert list(found.shape) == [4, 3, 5, 0] and list(found.stride) == [5, 20, 1, 0]
