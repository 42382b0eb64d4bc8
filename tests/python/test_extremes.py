# SPDX-License-Identifier: Apache-2.0
"""Numbers at the ends of what floating point holds give the right value or are refused."""

import math

import pytest
import torch

import dense
from magi_attention.api import flex_flash_attn_func

ROWS = 6
MASK = dense.Mask([(0, ROWS)], [(0, ROWS)], [1], ROWS, ROWS)
RANGES = torch.tensor([[0, ROWS]], dtype=torch.int32)
TYPES = torch.ones(1, dtype=torch.int32)
EPSILON = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20, torch.float64: 2.0**-45}


def run(dtype, sink=None, **options):
    """Results and gradients, and those of dense attention, by name."""
    generator = torch.Generator().manual_seed(0)
    leaves = [
        torch.randn(ROWS, heads, 8, generator=generator, dtype=torch.float64).to(dtype)
        for heads in (4, 2, 2)
    ]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves += [] if sink is None else [torch.full((1, 4), sink, dtype=wide)]
    found = [leaf.clone().requires_grad_() for leaf in leaves]
    wanted = [leaf.double().clone().requires_grad_() for leaf in leaves]
    q, k, v, *sinks = found
    given = {"sink": sinks[0]} if sinks else {}
    out, meta = flex_flash_attn_func(q, k, v, RANGES, RANGES, TYPES, **given, **options)
    scale, softcap = options.get("softmax_scale"), options.get("softcap", 0.0)
    dense_sink = wanted[3] if sinks else None
    exact, lse, _ = dense.attention(*wanted[:3], MASK, dense_sink, scale, softcap)
    names = ("out", "lse", "dq", "dk", "dv", "dsink")
    (out.sum() + meta.lse.sum()).backward()
    (exact.sum() + lse.sum()).backward()
    ours = (out, meta.lse, *(t.grad for t in found))
    return zip(names, ours, (exact, lse, *(t.grad for t in wanted)))


def is_right(dtype, pairs) -> None:
    for name, found, wanted in pairs:
        greatest = wanted.abs().max().item()
        error = (found.double() - wanted).abs().max().item()
        assert error <= 16 * EPSILON[dtype] * greatest + 1e-36, (name, error, greatest)


AT_THE_ENDS = [
    *({"softcap": number} for number in (1e-30, 1e-20, 1e10, 1e20, 1e30)),
    *({"softmax_scale": number} for number in (1e-30, -1e-30, 1e-10)),
    *({"softmax_scale": x, "softcap": y} for x, y in ((1e10, 1e-20), (-1e-10, 1e20), (1, 1e-30))),
    *({"sink": number} for number in (-math.inf, -1e38, -1e30, 100.0, 1e4, 1e30)),
]


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("given", AT_THE_ENDS, ids=str)
def test_at_the_ends(given, dtype):
    is_right(dtype, run(dtype, **given))


@pytest.mark.parametrize("name", ["softmax_scale", "softcap"])
@pytest.mark.parametrize("number", [1e-300, 1e-45, 9e-31, 2e30, 3.4e38, 1e39, 1e300])
def test_beyond_float32(number, name):
    for dtype in (torch.bfloat16, torch.float32):
        pattern = rf"{name} is .*e.*; allowed: .*1e-30 to 1e.30 for tor"
        with pytest.raises(ValueError, match=pattern):
            run(dtype, **{name: number})
    if name == "softcap" or number < 1.0:  # gradients of hard maxima are none
        is_right(torch.float64, run(torch.float64, **{name: number}))


@pytest.mark.parametrize("scale, softcap", [(1e30, 1e-30), (-1e20, 1e-20), (1e-30, 1e30)])
def test_quotients_beyond_float32(scale, softcap):
    for dtype in (torch.bfloat16, torch.float32):
        pattern = r"softmax_scale / softcap is 1e.*; allowed: 1e-30 to "
        with pytest.raises(ValueError, match=pattern):
            run(dtype, softmax_scale=scale, softcap=softcap)
    run(torch.float64, softmax_scale=scale, softcap=softcap)
    with pytest.raises(ValueError, match=r"softmax_scale / softcap is inf in magnitude; allowed"):
        run(torch.float64, softmax_scale=1e300, softcap=1e-300)


@pytest.mark.parametrize("number", [0.0, -0.0, math.nan, math.inf, -math.inf])
def test_no_scale(number):
    for dtype in EPSILON:
        with pytest.raises(ValueError, match=r"softmax_scale is .*; allowed: finite and not 0"):
            run(dtype, softmax_scale=number)
        if number != 0.0:
            with pytest.raises(ValueError, match=r"softcap is .*; allowed: 0 .off."):
                run(dtype, softcap=number)


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("sink", [1.1e30, 3e38, math.inf])
def test_sinks_that_are_refused(sink, dtype):
    with pytest.raises(ValueError, match=r"sink holds .*; allowed: -inf to 1e\+30"):
        run(dtype, sink)


def test_sinks_that_are_not_numbers():
    """They are in the results, where they are looked for."""
    for name, found, _ in run(torch.float32, math.nan):
        assert found.isnan().all(), name
