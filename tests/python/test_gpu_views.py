# SPDX-License-Identifier: Apache-2.0
"""As test_views.py, on a GPU: masks and lists of blocks, key lists and ranges in its memory."""

import torch

import test_views
from on_gpu import NEEDS_GPU, PLACES

pytestmark = NEEDS_GPU


@PLACES
def test_on_one_device(place):
    where = "cuda" if place == "device" else "cpu"
    for name, (call, given) in test_views.attention("cuda", torch.bfloat16, where).items():
        try:
            test_views.check(call, given, is_exact=False)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


def test_over_ranks(gpu_ranks):
    for size in {1, torch.cuda.device_count()}:
        gpu_ranks.run(size, test_views.over_ranks, torch.bfloat16, False)
