# SPDX-License-Identifier: Apache-2.0
"""Which backends there are, and what is said where one does not serve this machine."""

import importlib.machinery
import importlib.util

import pytest
import torch

import peer_cases as cases
from magi_attention import backends
from magi_attention.backends import _registry, _table
from magi_attention.common.enum import MagiAttentionKernelBackend


@pytest.fixture
def machine(monkeypatch):
    """A machine with GPUs of these compute capabilities and these modules."""

    def is_like(capabilities, *modules):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: capabilities[i])
        found = importlib.util.find_spec
        spec = importlib.machinery.ModuleSpec("found", None)
        known = {"triton", "cudnn.flex_attention", "flash_attn.cute.interface"}
        monkeypatch.setattr(
            importlib.util, "find_spec",
            lambda name: (spec if name in modules else None) if name in known else found(name),
        )  # fmt: skip
        monkeypatch.setattr(_table, "gpu_architectures", lambda: "sm_90a")
        return {row.values[0]: row for row in backends.table()}

    return is_like


def test_every_value_of_the_variable_has_one_row():
    values = [value for row in backends.table() for value in row.values]
    assert sorted(values) == sorted(kind.value for kind in MagiAttentionKernelBackend)


def test_without_a_gpu(machine):
    rows = machine([], "triton")
    assert rows["ffa"].devices == rows["sdpa"].devices == ("cpu",)
    assert rows["ffa"].reason == rows["flex"].reason == "this process sees no GPU"
    assert rows["fa4"].reason == "flash-attn-4 is not installed" and not rows["fa4"].devices


@pytest.mark.parametrize(
    "capability, served",
    [((9, 0), {"fa4", "cudnn", "flex"}), ((10, 0), {"fa4", "cudnn", "flex"}),
     ((10, 3), {"fa4", "cudnn", "flex"}), ((11, 0), {"fa4", "flex"}), ((12, 0), {"flex"}),
     ((8, 0), {"flex"}), ((7, 0), set())],
)  # fmt: skip
def test_gpus(machine, capability, served):
    rows = machine([(7, 0), capability], "triton", "cudnn.flex_attention",
                   "flash_attn.cute.interface")  # fmt: skip
    assert rows["sdpa"].devices == ("cpu", "cuda:0", "cuda:1")
    served = served | {"ffa", "mma"} if capability >= (8, 0) else served
    for value in ("ffa", "mma", "fa4", "cudnn", "flex"):
        row = rows[value]
        assert ("cuda:1" in row.devices) == (value in served) == (row.reason == "")
        if value not in served:
            assert row.reason.startswith("it serves GPUs of compute capability " + row.gpus)
            assert f"{capability[0]}.{capability[1]}" in row.reason


def test_what_does_not_serve_the_machine_is_refused_with_its_reason(machine):
    machine([(8, 0)], "cudnn.flex_attention")
    with pytest.raises(RuntimeError, match=r"^backend is fa4, but flash-attn-4 is not "
                                           r"installed; allowed: ffa, mma, sdpa$"):  # fmt: skip
        _table.ensure("fa4")
    with pytest.raises(RuntimeError, match=r"9\.0, 10\.0, 10\.3, of which there are 8.0 here"):
        _table.chosen_by("cudnn")
    assert not _table.is_usable("cudnn") and not _registry.is_registered("cudnn")
    _table.ensure("someone's own")
    assert _table.chosen_by("ffa") is None and _table.chosen_by("cutedsl") is None


def test_kernels_for_every_gpu_are_refused_where_there_is_none(machine):
    machine([(7, 5)])
    with pytest.raises(RuntimeError, match=r"^backend is mma, but it serves GPUs of compute "
                                           r"capability 8\.0 or later, of which there are 7\.5 "
                                           r"here; allowed: ffa, sdpa$"):  # fmt: skip
        _table.chosen_by("mma")


def test_registered_at_the_first_use(machine):
    machine([(10, 0)], "cudnn.flex_attention")
    try:
        assert _table.chosen_by("cudnn") == _table.chosen_by("cudnn") == "cudnn"
        with pytest.raises(ValueError, match="backend"):
            backends.limits("cudnn", "cpu")
    finally:
        backends.unregister("cudnn")
    assert not _registry.is_registered("cudnn")


def test_names_of_the_own_backend():
    assert backends.table()[0].name == "ffa"
    assert backends.limits("ffa") == backends.limits("cutedsl") == backends.limits()
    for name in ("ffa", "cutedsl"):
        with pytest.raises(ValueError, match=f"name is '{name}', the library's own backend"):
            backends.register(name, print, print)


def test_what_was_registered_by_hand_is_used_as_it_is():
    with cases.registered("fa4"):
        _table.ensure("fa4")
        assert _table.is_usable("fa4") and backends.limits("fa4").has_dlse
