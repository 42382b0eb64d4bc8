# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

import dense
from magi_attention.functional import utils

INF = math.inf


def parts(rows=12):
    """Attention over two halves of the keys, and over all; the first rows see no first half."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(rows, 2, 4, generator=generator).double() for _ in range(3))
    half = rows // 2
    first = dense.Mask([(3, rows)], [(0, half)], [0], rows, rows)
    second = dense.Mask([(2, rows)], [(half, rows)], [0], rows, rows)
    both = dense.Mask([(3, rows), (2, rows)], [(0, half), (half, rows)], [0, 0], rows, rows)
    return [dense.attention(q, k, v, mask)[:2] for mask in (first, second, both)]


def test_safe_subtract():
    a, b = torch.tensor([1.0, -INF, -INF, 2.0]), torch.tensor([0.5, -INF, 3.0, -INF])
    assert utils.safe_subtract(a, b).tolist() == [0.5, -INF, -INF, INF]


def test_safe_softmax_and_lse():
    x = torch.tensor([[1.0, 2.0, -INF], [-INF, -INF, -INF]], dtype=torch.float64)
    x.requires_grad_()
    lse, probabilities = utils.safe_lse(x), utils.safe_softmax(x)
    assert torch.allclose(lse[0], torch.logsumexp(x[0], 0)) and lse[1] == -INF
    assert torch.allclose(probabilities[0], torch.softmax(x[0], 0))
    assert (probabilities[1] == 0).all()
    again = utils.safe_softmax(x, utils.safe_lse(x, keepdim=True))
    assert torch.equal(again, probabilities)
    (gradient,) = torch.autograd.grad(lse[0] + probabilities.sum(), x)
    assert gradient.isfinite().all()


def test_softmax_bwd():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    out, dout = torch.softmax(x, -1), torch.randn(4, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad(out, x, dout)
    assert torch.allclose(utils.softmax_bwd(dout, out.detach()), expected)


@pytest.mark.parametrize("inplace", [False, True])
def test_merging_two_key_sets(inplace):
    (out1, lse1), (out2, lse2), (out, lse) = parts()
    given = out1.clone(), lse1.clone()
    merged_out, merged_lse = utils.correct_attn_out_lse(*given, out2, lse2, inplace=inplace)
    assert torch.allclose(merged_out, out) and torch.allclose(merged_lse, lse)
    assert (merged_out is given[0]) == inplace and (merged_lse is given[1]) == inplace
    assert inplace or torch.equal(given[0], out1)


@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_sink(layout):
    rows = 10
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(rows, 2, 4, generator=generator).double() for _ in range(3))
    lead = (rows,) if layout == "ssh" else ()
    sink = torch.randn(*lead, 3, 2, generator=generator).double().requires_grad_()
    mask = dense.Mask([(1, rows)], [(0, rows - 1)], [1], rows, rows)
    out, lse, _ = dense.attention(q, k, v, mask)
    expected_out, expected_lse, _ = dense.attention(q, k, v, mask, sink)
    plain = sink.detach()
    found = utils.correct_attn_out_lse_with_sink(out, lse, plain, layout)
    assert torch.allclose(found[0], expected_out) and torch.allclose(found[1], expected_lse)
    dout = torch.randn(out.shape, generator=generator).double()
    (expected,) = torch.autograd.grad(expected_out, sink, dout)
    gradient = utils.sink_bwd(plain, found[1], found[0], dout, layout)
    assert torch.allclose(gradient, expected)
    total = torch.ones_like(plain)
    written = utils.sink_bwd(plain, found[1], found[0], dout, layout, total)
    assert written is total and torch.allclose(written, expected)


@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_gradient_of_sinks_that_are_off(layout):
    """A sink of -inf on a row without keys: nothing over nothing, of which the gradient is 0."""
    sink = torch.tensor([[-INF, 0.5], [-INF, -INF]])
    lse = torch.tensor([[-INF, 0.5], [1.0, 0.7]])
    out, dout = torch.zeros(2, 2, 4), torch.ones(2, 2, 4)
    out[0, 1] = out[1] = 1.0
    given = sink if layout == "sh" else sink.expand(2, 2, 2)
    gradient = utils.sink_bwd(given, lse, out, dout, layout)
    assert gradient.isfinite().all()
    assert (gradient[given == -INF] == 0).all() and (gradient[given == 0.5] < 0).all()


def test_layouts():
    with pytest.raises(NotImplementedError, match="shd"):
        utils.calc_lse_sink(torch.zeros(1, 2), 3, "shd")
    with pytest.raises(ValueError, match="sink_layout is 'x'"):
        utils.calc_lse_sink(torch.zeros(1, 2), 3, "x")
