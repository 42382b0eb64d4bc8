# SPDX-License-Identifier: Apache-2.0
"""Random tests take their generator from `rng`, whose seed is in the test's name. Tests that take
`group` run on every rank of a process group (ranks.over).
"""

import inspect
import random

import pytest

from ranks import Ranks, fork_server


def pytest_configure(config):
    # It imports while tests are collected. Workers of pytest-xdist have one each, and their parent,
    # which runs no test, none.
    if not getattr(config.option, "numprocesses", None):
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.resume_global_capture()  # what ranks will print is kept
        fork_server()
        capture.suspend_global_capture()


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


@pytest.fixture(params=["ffa", "mma"])
def family(request, monkeypatch):
    monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", request.param)


@pytest.fixture
def group(request):
    name, size = request.param
    return request.getfixturevalue(name), size


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    names = [n for n in inspect.signature(pyfuncitem.obj).parameters if n in pyfuncitem.funcargs]
    if names[:1] != ["group"]:
        return None
    (ranks, size), *given = (pyfuncitem.funcargs[name] for name in names)
    ranks.run(size, pyfuncitem.obj, *given)
    return True
