# SPDX-License-Identifier: Apache-2.0
"""FlexAttention (torch.compile) on the masks of compare_attention.py, as calls to be timed."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def mask_rule(name, lengths, window, block):
    """The mask as FlexAttention's function of head, q row and k row."""
    if name == "full":
        return None
    if name == "causal":
        return lambda b, h, q, k: q >= k
    if name == "window":
        return lambda b, h, q, k: (q >= k) & (q - k < window)
    if lengths is None:
        raise SystemExit(f"--flex with mask {name}; allowed: full, causal, window, documents")
    sizes = torch.tensor(lengths, device="cuda")
    document = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), sizes)
    if name == "varlen_full":
        return lambda b, h, q, k: document[q] == document[k]
    if name == "varlen_causal":
        return lambda b, h, q, k: (document[q] == document[k]) & (q >= k)
    start = torch.repeat_interleave(torch.cumsum(sizes, 0) - sizes, sizes)
    rows = torch.arange(len(document), device="cuda")
    end = start + ((rows - start) // block + 1) * block
    return lambda b, h, q, k: (document[q] == document[k]) & (k < end[q])


class Flex:
    """Attention of [rows, heads, dim] tensors; makes the block mask, compiles the kernel."""

    def __init__(self, q, k, v, rule):
        rows = q.shape[0]
        self.block_mask = None
        if rule is not None:
            # Not compiled: Triton refuses some rules, and the mask is made before the clock runs.
            self.block_mask = create_block_mask(rule, None, None, rows, rows, device="cuda")
        self.attention = torch.compile(flex_attention, dynamic=False)
        self.inputs = (q, k, v)

    def views(self):
        return [t.transpose(0, 1).unsqueeze(0) for t in self.inputs]

    def __call__(self):
        return self.attention(*self.views(), block_mask=self.block_mask, enable_gqa=True)


def backward_call(q, k, v, dout, rule):
    """The gradients; the forward runs once, here."""
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    out = Flex(*inputs, rule)()
    upstream = dout.transpose(0, 1).unsqueeze(0)
    return lambda: torch.autograd.grad(out, inputs, upstream, retain_graph=True)
