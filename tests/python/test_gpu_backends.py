# SPDX-License-Identifier: Apache-2.0
"""Backends of other packages by their own kernels, where they are installed and serve the GPU,
against float64.
"""

import pytest
import torch

import dense
import peer_cases as cases
from magi_attention.api import flex_flash_attn_func
from magi_attention.backends import _table
from on_gpu import NEEDS_GPU
from pipeline_cases import Case
from test_kernel_backend import ranges_of

pytestmark = NEEDS_GPU
DIMS = {"cudnn": ((64, 64), (128, 128)), "fa4": ((64, 64), (128, 128)), "flex": ((64, 64),)}
RANDOM_MASKS = {"cudnn": 300, "fa4": 300, "flex": 12}
PARTS = 8  # each has one choice of dims, heads and type, so that few kernels are compiled
TOLERANCE = 0.05  # of bfloat16 values of order 1, over ranks


@pytest.fixture(params=list(cases.MODULES))
def name(request):
    if not _table.is_usable(request.param):
        rows = {row.name: row for row in _table.table()}
        pytest.skip(rows[request.param].reason)
    return request.param


@pytest.mark.parametrize("part", range(PARTS))
def test_any_slices(name, part):
    with cases.registered(name, "cuda"):
        for seed in range(part, RANDOM_MASKS[name], PARTS):
            print("seed", seed)
            generator = torch.Generator().manual_seed(seed)
            dims = DIMS[name][seed % len(DIMS[name])]
            rows, keys = torch.randint(1, 900, (2,), generator=generator).tolist()
            if name == "flex":
                rows, keys = 300, 500  # each shape is compiled
            heads = ((4, 4), (8, 2))[seed // 2 % 2]
            make = cases.random_documents if seed % 3 == 0 else cases.random_slices
            dtype = (torch.bfloat16, torch.float16)[seed // 4 % 2]
            slices = make(generator, rows, keys)
            cases.is_right(name, slices, (rows, keys, *heads, *dims), generator, "cuda", dtype)


@pytest.mark.parametrize("dims", [(192, 128), (256, 256)])
def test_large_heads(name, dims):
    if name == "flex" or (dims == (256, 256) and name == "fa4" and not is_hopper()):
        pytest.skip(f"{name} does not have them here")
    with cases.registered(name, "cuda"):
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            make = cases.random_documents if seed % 3 == 0 else cases.random_slices
            shape = (500, 700, 4, 4, *dims)
            slices = make(generator, *shape[:2])
            cases.is_right(name, slices, shape, generator, "cuda", torch.bfloat16)


def is_hopper() -> bool:
    return torch.cuda.get_device_capability()[0] == 9


@pytest.mark.parametrize("where", ["host", "device"])
def test_ranges(name, where):
    """Of flex_flash_attn_func, in host and in device memory, behind the stream of the call."""
    mask = dense.masks(300)["varlen_causal"]
    ranges = [t.cuda() if where == "device" else t for t in ranges_of(mask)]
    made = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(300, heads, 64, generator=made).to("cuda", torch.bfloat16).requires_grad_()
        for heads in (8, 2, 2)
    )
    own, _ = flex_flash_attn_func(q, k, v, *ranges)
    wanted = torch.autograd.grad(own.float().square().sum(), (q, k, v))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with cases.chosen(name, "cuda"), torch.cuda.stream(stream):
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(10):
            busy = busy @ busy * 1e-3
        out, _ = flex_flash_attn_func(q * 1.0, k * 1.0, v * 1.0, *ranges)
        found = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    torch.cuda.synchronize()
    for one, other in zip((out, *found), (own, *wanted)):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("size", range(1, min(torch.cuda.device_count(), 2) + 1))
@pytest.mark.parametrize("mask", ["varlen_causal", "four_types", "block_causal_q_overlap"])
def test_plans(gpu_ranks, name, size, mask):
    case = Case(mask=mask, rows=700, head_dim=64, dtype="bfloat16", degree=2)
    gpu_ranks.run(size, cases.through_a_key, name, case, TOLERANCE, "cuda")
