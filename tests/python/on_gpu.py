# SPDX-License-Identifier: Apache-2.0
"""Tensors, references and tolerances of the tests on a GPU."""

import contextlib

import pytest
import torch
import torch.distributed as dist

import dense
from magi_attention.env import build
from magi_attention.plan import Plan
from test_flex import tensors

NEEDS_GPU = pytest.mark.skipif(
    not (torch.cuda.is_available() and build.has_gpu_kernels()), reason="device test not run"
)
ROWS = 300
PLACES = pytest.mark.parametrize("place", ["host", "device"])
FAMILIES = pytest.mark.usefixtures("family")  # of the library's own kernels


def inputs(rows_q=ROWS, rows_k=ROWS, heads=(8, 2), dim=64, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows_q, heads[0], dim), (rows_k, heads[1], dim), (rows_k, heads[1], dim))
    made = [torch.randn(shape, generator=generator).to("cuda", dtype) for shape in shapes]
    return [t.requires_grad_() for t in made]


def ranges_on(mask, place: str):
    return tuple(t.cuda() if place == "device" else t for t in tensors(mask))


def as_float64(*given):
    return [t.detach().double().cpu().requires_grad_() for t in given]


def check_close(found, wanted, dtype=torch.bfloat16, factor=4.0):
    found, wanted = found.detach().double().cpu(), wanted.detach()
    assert found.shape == wanted.shape and not found.isnan().any()
    assert torch.equal(found.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    if finite.any():
        scale = max(1.0, wanted[finite].abs().max().item())
        error = (found - wanted)[finite].abs().max().item()
        assert error <= factor * torch.finfo(dtype).eps * scale, error


@contextlib.contextmanager
def no_waits():
    """Raises where torch waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def capture(step, group=None):
    """A graph of step and what step gives, after the calls that make what is made once. group: of
    the ranks that capture theirs, too.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    if group is not None:
        dist.barrier(group)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local" if group else "global"):
        found = step()
    return graph, found


def bound_plan(name="varlen_causal", rows=ROWS):
    mask = dense.masks(rows)[name]
    plan = Plan.from_ranges(
        *mask.ranges(), rows, cp_size=1, num_heads_q=8, num_heads_kv=2, head_dim=64
    )
    return mask, plan.bind()
