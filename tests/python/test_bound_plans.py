# SPDX-License-Identifier: Apache-2.0
"""What adapters do with tensors and plans on the way to attention."""

import pytest
import torch

from magi_attention.integrations._bound import of_autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_its_type(dtype):
    mixed = torch.zeros(2), torch.zeros(2), torch.zeros(2, dtype=dtype)
    assert [x.dtype for x in of_autocast(mixed)] == [torch.float32, torch.float32, dtype]
    with torch.autocast("cpu", dtype):
        assert [x.dtype for x in of_autocast(mixed)] == [dtype] * 3
        (exact,) = of_autocast((torch.zeros(2, dtype=torch.float64),))
    assert exact.dtype == torch.float64


def test_devices_without_autocast_are_left_alone():
    (tensor,) = of_autocast((torch.zeros(2, device="meta"),))
    assert tensor.device.type == "meta"
