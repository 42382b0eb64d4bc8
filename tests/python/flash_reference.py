# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the functions of FlashAttention 2, 3 and 4, by their signatures: dense attention in
float64 without sinks. Backward takes what it is given for out and lse.
"""

from __future__ import annotations

import contextlib
import sys
import types
from unittest import mock

import torch

import dense
from magi_attn_extensions import _installed

calls: list[str] = []


def _parts(q, k, bounds):
    """Rows and keys of each document, and the place of its lse."""
    if bounds[0] is None:
        for b in range(len(q)):
            yield (b,), (b,), (b, slice(None), slice(None))
        return
    cu_q, cu_k, longest_q, longest_k = bounds
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert longest_q >= cu_q.diff().max() and longest_k >= cu_k.diff().max()
    for q0, q1, k0, k1 in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        yield (slice(q0, q1),), (slice(k0, k1),), (slice(None), slice(q0, q1))


def _kind(q, k, options) -> tuple:
    """What dense takes of two parts: visible, scale and softcap."""
    scale, causal, sides, softcap = options
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return dense.window(q.shape[0], k.shape[0], causal, sides), scale, softcap


def _forward(release, q, k, v, bounds, options):
    calls.append(f"forward {release}")
    without_keys = torch.inf if release == 2 else -torch.inf  # lse of rows without keys
    lse_shape = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    out, lse = torch.zeros_like(q), q.new_full(lse_shape, torch.nan)
    with torch.no_grad():
        for rows, keys, place in _parts(q, k, bounds):
            visible, scale, softcap = _kind(q[rows], k[keys], options)
            tensors = (t.double() for t in (q[rows], k[keys], v[keys]))
            if not visible.numel():
                lse[place] = without_keys
                continue
            out[rows], of_rows, _ = dense.attention(*tensors, visible, None, scale, softcap)
            lse[place] = of_rows.T.masked_fill(of_rows.T.isneginf(), without_keys).to(lse.dtype)
    return out, lse


def _backward(release, q, k, v, out, dout, lse, dlse, bounds, options, written) -> None:
    calls.append(f"backward {release}")
    for tensor in written:
        tensor.zero_()
    for rows, keys, place in _parts(q, k, bounds):
        tensors = q[rows], k[keys], v[keys], out[rows], dout[rows], lse[place]
        kind = _kind(q[rows], k[keys], options)
        found = dense.backward(tensors, *kind, None if dlse is None else dlse[place])
        for tensor, gradient, index in zip(written, found, (rows, keys, keys)):
            tensor[index] = gradient.to(tensor.dtype)


NO_BOUNDS = (None,) * 4


def _of_2() -> dict:
    def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        options = softmax_scale, causal, window_size, softcap
        assert return_attn_probs and dropout_p == 0.0 and alibi_slopes is None
        return *_forward(2, q, k, v, NO_BOUNDS, options), None

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        options = softmax_scale, causal, window_size, softcap
        return *_forward(2, q, k, v, bounds, options), None

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        options = softmax_scale, causal, (window_size_left, window_size_right), softcap
        _backward(2, q, k, v, out, dout, softmax_lse, None, NO_BOUNDS, options, (dq, dk, dv))

    def _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
        softcap, alibi_slopes, deterministic, rng_state=None, zero_tensors=False,
    ):  # fmt: skip
        bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        options = softmax_scale, causal, (window_size_left, window_size_right), softcap
        _backward(2, q, k, v, out, dout, softmax_lse, None, bounds, options, (dq, dk, dv))

    return locals()


def _of_3() -> dict:
    def flash_attn_func(
        q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
        v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
        pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
    ):  # fmt: skip
        options = softmax_scale, causal, window_size, softcap
        assert return_attn_probs
        return _forward(3, q, k, v, NO_BOUNDS, options)

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
        seqused_k=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        deterministic=False, sm_margin=0,
    ):  # fmt: skip
        """As of releases that always give lse."""
        bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        options = softmax_scale, causal, window_size, softcap
        return _forward(3, q, k, v, bounds, options)

    def backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None,
        sequed_k=None, max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None,
        softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
        softcap=0.0, deterministic=False, sm_margin=0,
    ):  # fmt: skip
        bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        options = softmax_scale, is_causal, (window_size_left, window_size_right), softcap
        _backward(3, q, k, v, out, dout, softmax_lse, None, bounds, options, (dq, dk, dv))

    class Operator:
        """What torch.library.custom_op makes of a function."""

        _init_fn = staticmethod(backward)

        def __call__(self, *arguments, **named):
            return self._init_fn(*arguments, **named)

    return {
        "flash_attn_func": flash_attn_func,
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "_flash_attn_backward": Operator(),
    }


def _of_4() -> dict:
    def flash_attn_func(
        q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False,
        window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
        deterministic=False, return_lse=False,
    ):  # fmt: skip
        assert return_lse
        options = softmax_scale, causal, window_size, softcap
        return _forward(4, q, k, v, NO_BOUNDS, options)

    def flash_attn_varlen_func(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
        max_seqlen_k=None, softmax_scale=None, causal=False, window_size=(None, None),
        softcap=0.0, deterministic=False, return_lse=False,
    ):  # fmt: skip
        bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        options = softmax_scale, causal, window_size, softcap
        return _forward(4, q, k, v, bounds, options)

    def _flash_attn_bwd(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0,
        window_size_left=None, window_size_right=None, cu_seqlens_q=None, cu_seqlens_k=None,
        max_seqlen_q=None, max_seqlen_k=None, deterministic=False, dq=None, dk=None, dv=None,
        dlse=None,
    ):  # fmt: skip
        bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        options = softmax_scale, causal, (window_size_left, window_size_right), softcap
        _backward(4, q, k, v, out, dout, lse, dlse, bounds, options, (dq, dk, dv))

    return locals()


@contextlib.contextmanager
def installed(*releases: int):
    """These releases, for tensors of any type in host memory."""
    found = {2: _of_2, 3: _of_3, 4: _of_4}
    made = {}
    for release in releases:
        name = _installed._RELEASES[release].module
        made[name] = types.ModuleType(name)
        vars(made[name]).update(found[release]())
        for parent in ("flash_attn", "flash_attn.cute"):
            made.setdefault(parent, types.ModuleType(parent))
    calls.clear()
    with (
        mock.patch.dict(sys.modules, made),
        mock.patch.object(_installed, "serves", lambda release, q, v: release in releases),
    ):
        yield
