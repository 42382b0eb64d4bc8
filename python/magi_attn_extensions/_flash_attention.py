# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention 2, 3 and 4 with a sink, each made of a row: its tensors and its
options with their defaults, in the order of that release.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from magi_attention.common._arguments import as_bool
from magi_attn_extensions._attention import attend_batch, attend_packed
from magi_attn_extensions._installed import Options

_SINK = {"sink": None, "sink_layout": "sh"}
_CAUSAL = {"softmax_scale": None, "causal": False}
_DESCALE = {"q_descale": None, "k_descale": None, "v_descale": None}
_CHUNK = {"window_size": (-1, -1), "attention_chunk": 0, "softcap": 0.0}
_SPLITS = {"num_splits": 1, "pack_gqa": None, "deterministic": False}
_PROBS = {"return_attn_probs": False}

_OF_2 = {
    **_SINK, "dropout_p": 0.0, **_CAUSAL, "window_size": (-1, -1), "softcap": 0.0,
    "alibi_slopes": None, "deterministic": False, **_PROBS,
}  # fmt: skip
_TAIL_3 = {**_CAUSAL, "qv": None, **_DESCALE, **_CHUNK, **_SPLITS, "sm_margin": 0, **_PROBS}
_PACKED_3 = {
    **_SINK, **_CAUSAL, **_DESCALE, **_CHUNK, "deterministic": False, "num_heads_q": None,
    "sm_margin": 0, **_PROBS,
}  # fmt: skip
_OF_4 = {**_SINK, **_CAUSAL, "softcap": 0.0, **_SPLITS, **_PROBS}

_BOUNDS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_REFUSED = {
    "dropout_p", "alibi_slopes", "block_table", "seqused_q", "seqused_k", "qv", "attention_chunk",
    *_DESCALE,
}  # fmt: skip
_PASSED = ("window_size", "deterministic", "sm_margin")

_ABOUT = """{theirs} of FlashAttention {release} with a sink.

{shapes}. Returns out like q, or with return_attn_probs (out, lse {lse}). num_splits and pack_gqa
have no effect on results. NotImplementedError for what is asked of dropout, ALiBi, block tables,
seqused, qv, descaling and attention_chunk.
"""
_BATCH_SHAPES = {
    "q": "q [batch, rows_q, heads_q, dim], k, v [batch, rows_k, heads_kv, dim]",
    "qkv": "qkv [batch, rows, 3, heads, dim], or with num_heads_q [batch, rows, heads_q + 2 * "
    "heads_kv,\ndim]",
    "kv": "q [batch, rows_q, heads_q, dim], kv [batch, rows_k, 2, heads_kv, dim]",
}
_PACKED_SHAPES = {
    "q": "q [rows_q, heads_q, dim], k, v [rows_k, heads_kv, dim]",
    "qkv": "qkv [rows, 3, heads, dim]",
    "kv": "q [rows_q, heads_q, dim], kv [rows_k, 2, heads_kv, dim]",
}


def _made(
    release: int, form: str, tensors: tuple[str, ...], options: dict[str, Any]
) -> Callable[..., Any]:
    """The function of a release; form: "", "qkvpacked_", "varlen_", ..."""
    names = (*tensors, *options)
    signature = inspect.Signature(
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=options.get(name, inspect.Parameter.empty),
        )
        for name in names
    )
    required, is_varlen = set(tensors), form.startswith("varlen_")

    def function(*arguments: Any, **named: Any) -> Any:
        given = dict(zip(names, arguments))
        unknown = named.keys() - set(names) or named.keys() & given.keys()
        if unknown or len(arguments) > len(names) or required - given.keys() - named.keys():
            signature.bind(*arguments, **named)  # raises TypeError that says what is wrong
        return _attend(release, is_varlen, {**options, **given, **named})

    packing = "qkv" if "qkv" in tensors else "kv" if "kv" in tensors else "q"
    shapes = (_PACKED_SHAPES if is_varlen else _BATCH_SHAPES)[packing]
    if is_varlen:
        shapes += ", documents between the bounds;\nmax_seqlen: rows of the longest"
    function.__name__ = function.__qualname__ = f"fa{release}_{form}func_with_sink"
    function.__signature__ = signature
    function.__doc__ = _ABOUT.format(
        theirs=f"flash_attn_{form}func", release=release, shapes=shapes,
        lse="[heads_q, rows_q]" if is_varlen else "[batch, heads_q, rows_q]",
    )  # fmt: skip
    return function


def _attend(release: int, is_varlen: bool, given: dict[str, Any]) -> Any:
    for name in filter(_REFUSED.__contains__, given):
        if isinstance(given[name], torch.Tensor) or given[name]:
            raise NotImplementedError(f"{name} is not available; leave it out")
    flags = [as_bool(name, given[name]) for name in ("causal", "return_attn_probs")]
    if "deterministic" in given:
        as_bool("deterministic", given["deterministic"])
    options = Options(
        release, given["sink"], given["sink_layout"], given["softmax_scale"], flags[0],
        softcap=given["softcap"], return_attn_probs=flags[1],
        **{name: given[name] for name in _PASSED if name in given},
    )  # fmt: skip
    if given.get("num_heads_q") is not None:
        qkv, num_heads_q = given["qkv"], given["num_heads_q"]
        heads_kv = (qkv.shape[-2] - num_heads_q) // 2
        q, k, v = qkv.split((num_heads_q, heads_kv, heads_kv), -2)
    elif "qkv" in given:
        q, k, v = given["qkv"].unbind(-3)
    elif "kv" in given:
        q, (k, v) = given["q"], given["kv"].unbind(-3)
    else:
        q, k, v = given["q"], given["k"], given["v"]
    if not is_varlen:
        return attend_batch(q, k, v, options)
    if "cu_seqlens" in given:
        bounds, longest = (given["cu_seqlens"],) * 2, (given["max_seqlen"],) * 2
    else:
        bounds = given["cu_seqlens_q"], given["cu_seqlens_k"]
        longest = given["max_seqlen_q"], given["max_seqlen_k"]
    return attend_packed(q, k, v, bounds, longest, options)


_QKV = ("q", "k", "v")
_SEQUSED = {**_SINK, "seqused_q": None, "seqused_k": None}

fa2_func_with_sink = _made(2, "", _QKV, _OF_2)
fa2_qkvpacked_func_with_sink = _made(2, "qkvpacked_", ("qkv",), _OF_2)
fa2_kvpacked_func_with_sink = _made(2, "kvpacked_", ("q", "kv"), _OF_2)
fa2_varlen_func_with_sink = _made(2, "varlen_", (*_QKV, *_BOUNDS), {**_OF_2, "block_table": None})
fa2_varlen_qkvpacked_func_with_sink = _made(
    2, "varlen_qkvpacked_", ("qkv", "cu_seqlens", "max_seqlen"), _OF_2
)
fa2_varlen_kvpacked_func_with_sink = _made(2, "varlen_kvpacked_", ("q", "kv", *_BOUNDS), _OF_2)
fa3_func_with_sink = _made(3, "", _QKV, {**_SINK, **_TAIL_3})
fa3_varlen_func_with_sink = _made(3, "varlen_", (*_QKV, *_BOUNDS), {**_SEQUSED, **_TAIL_3})
fa3_qkvpacked_func_with_sink = _made(3, "qkvpacked_", ("qkv",), _PACKED_3)
fa4_func_with_sink = _made(4, "", _QKV, _OF_4)
fa4_varlen_func_with_sink = _made(4, "varlen_", (*_QKV, *_BOUNDS), _OF_4)
