# SPDX-License-Identifier: Apache-2.0
"""Random tests take their generator from `rng`, whose seed is in the test's name."""

import random

import pytest

from ranks import Ranks


@pytest.fixture(params=range(3), ids=lambda seed: f"seed{seed}")
def rng(request):
    return random.Random(request.param)


@pytest.fixture(scope="session")
def ranks():
    started = Ranks()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def eight_ranks():
    started = Ranks(8)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def gpu_ranks():
    import torch

    started = Ranks(torch.cuda.device_count(), "nccl")
    yield started
    started.stop()
