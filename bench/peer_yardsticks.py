# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4 and cuDNN's flex attention, where they are installed, on the masks of
compare_attention.py, as calls to be timed. All tensors are [rows, heads, dim].
"""

import importlib
import importlib.metadata

import torch

PEERS = {"fa4": "flash-attn-4", "cudnn_flex": "nvidia-cudnn-frontend"}
MODULES = {"fa4": "flash_attn.cute.interface", "cudnn_flex": "cudnn.flex_attention"}


def load(peer):
    """The peer's module."""
    try:
        return importlib.import_module(MODULES[peer])
    except ImportError as error:
        raise SystemExit(
            f"--{peer.replace('_', '-')} needs package {PEERS[peer]}: {error}"
        ) from None


def version(peer):
    return importlib.metadata.version(PEERS[peer])


def fa4_call(q, k, v, name, lengths, window):
    """FlashAttention-4's call; None where it has no such mask."""
    module = load("fa4")
    if name in ("varlen_full", "varlen_causal"):
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).cuda()
        cut = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "causal": name == "varlen_causal"}
        cut |= {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
        return lambda: first_of(module.flash_attn_varlen_func(q, k, v, **cut))
    options = {
        "full": {},
        "causal": {"causal": True},
        "window": {"window_size": (window - 1, 0)},
    }.get(name)
    if options is None:
        return None
    batch = [tensor.unsqueeze(0) for tensor in (q, k, v)]
    return lambda: first_of(module.flash_attn_func(*batch, **options))


def cudnn_flex_call(q, k, v, slices):
    """The call of cuDNN's flex attention; None where a pair is in several slices. Its plan is made
    here, once.
    """
    module = load("cudnn_flex")
    ends = interval_ends(slices, q.shape[0])
    if ends is None:
        return None
    batch = [tensor.unsqueeze(0) for tensor in (q, k, v)]
    plan = module.create_mask_plan(
        torch.tensor(ends, dtype=torch.int32).t().contiguous().unsqueeze(0).cuda(), *batch
    )
    return lambda: first_of(module.flex_attn_func(*batch, mask_plan=plan))


def first_of(result):
    return result[0] if isinstance(result, tuple) else result


def interval_ends(slices, rows):
    """Of each query F0, F1, ...: it sees keys [0, F0), [F1, F2), and so on, all queries as many.
    None where a pair is in several slices.
    """
    seen = [[] for _ in range(rows)]
    for q0, q1, k0, k1, d_min, d_max in slices:
        for query in range(q0, q1):
            begin, end = max(k0, query + d_min), min(k1, query + d_max + 1)
            if begin < end:
                seen[query].append((begin, end))
    ends = []
    for intervals in seen:
        own = [0]
        for begin, end in sorted(intervals):
            if begin < own[-1]:
                return None
            if begin == own[-1]:
                own[-1] = end
            else:
                own += [begin, end]
        ends.append(own)
    longest = max(map(len, ends))
    return [own + [own[-1]] * (longest - len(own)) for own in ends]


def forward_calls(peers, tensors, name, slices, lengths, window):
    """The call of each peer that has the mask."""
    calls = {}
    for peer in peers:
        if peer == "fa4":
            calls[peer] = fa4_call(*tensors, name, lengths, window)
        else:
            calls[peer] = cudnn_flex_call(*tensors, slices)
    return {peer: call for peer, call in calls.items() if call is not None}


def backward_calls(peers, tensors, dout, name, slices, lengths, window):
    """The gradients of each peer that has the mask; their forward runs once, here."""
    inputs = [tensor.detach().requires_grad_() for tensor in tensors]
    calls = {}
    for peer, call in forward_calls(peers, inputs, name, slices, lengths, window).items():
        out = call()
        upstream = dout.view_as(out)
        calls[peer] = lambda out=out, upstream=upstream: torch.autograd.grad(
            out, inputs, upstream, retain_graph=True
        )
    return calls
