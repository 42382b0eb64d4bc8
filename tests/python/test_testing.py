# SPDX-License-Identifier: Apache-2.0
"""Dense attention to compare with."""

import pytest
import torch
from torch.testing import assert_close

import dense
from magi_attention.testing import ref_attn_func


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("sinks, layout", [(0, "sh"), (2, "sh"), (1, "ssh")])
@pytest.mark.parametrize("name", ["full", "causal", "varlen_causal"])
def test_reference(name, sinks, layout, softcap):
    mask = dense.masks(30)[name]
    generator = torch.Generator().manual_seed(0)
    shapes = (mask.rows_q, 4, 8), (mask.rows_k, 2, 8), (mask.rows_k, 2, 8)
    q, k, v = (torch.randn(shape, generator=generator).double() for shape in shapes)
    sink = None
    if sinks:
        lead = (mask.rows_q,) if layout == "ssh" else ()
        sink = torch.randn(*lead, sinks, 4, generator=generator).double()
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    again = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted, lse, max_logits = dense.attention(*inputs, mask, sink, None, softcap)
    out, meta = ref_attn_func(
        *again, mask.multiplicity() > 0, sink=sink, softcap=softcap, sink_layout=layout,
        return_lse=True, return_max_logits=True,
    )  # fmt: skip
    assert_close(out, wanted)
    assert_close(meta.lse, lse)
    assert_close(meta.max_logits, max_logits)
    for result in (out, wanted):
        result.square().sum().backward()
    for one, other in zip(again, inputs):
        assert_close(one.grad, other.grad)


def test_types_of_the_reference():
    q = torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    mask = torch.ones(6, 6, dtype=torch.bool)
    plain, meta = ref_attn_func(q, q, q, mask)
    wide, wide_meta = ref_attn_func(q, q, q, mask, high_precision=True, return_lse=True)
    assert plain.dtype == wide.dtype == torch.bfloat16 and meta.lse is meta.max_logits is None
    assert wide_meta.lse.dtype == torch.float64
    for change, match in (
        ({"layout": "bshd"}, "layout is 'bshd'; allowed: 'thd'"),
        ({"backend": "x"}, "backend is 'x'"),
        ({"sink_layout": "shd"}, "sink_layout is 'shd'; allowed: 'sh', 'ssh'"),
    ):
        with pytest.raises(ValueError, match=match):
            ref_attn_func(q, q, q, mask, **change)
