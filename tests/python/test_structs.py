# SPDX-License-Identifier: Apache-2.0
"""Every description of magi_tensor against the one that the module of calls is compiled from."""

import ctypes
import importlib
import pkgutil
import struct

import pytest
import torch

from magi_attention import _native
from magi_attention._native import attention
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


def structs_with_strides():
    """Those of ctypes in the package."""
    for found in pkgutil.iter_modules(_native.__path__):
        if not found.name.startswith("_"):  # the module of calls is loaded by its own rule
            for kind in vars(importlib.import_module(f"{_native.__name__}.{found.name}")).values():
                is_struct = isinstance(kind, type) and issubclass(kind, ctypes.Structure)
                if is_struct and "stride" in [field[0] for field in getattr(kind, "_fields_", ())]:
                    yield kind


@pytest.mark.parametrize("kind", dict.fromkeys((Tensor, *structs_with_strides())))
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
