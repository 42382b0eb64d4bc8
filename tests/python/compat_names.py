# SPDX-License-Identifier: Apache-2.0
"""Counts the public names, arguments and environment variables of MagiAttention 1.1.1 and of later
releases that work here (bench/musts.json: compat.names).

A name works where it imports and has the signature or value that is listed; each of its parameters
is an argument that works where it has its place, its kind and its default. An argument that is
listed with a value works where a call with it gives a result. A variable works where it is in the
docs and a key can be made with the value that is listed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from unittest import mock

import torch

import test_api_names as listed
from magi_attention.api import flex_flash_attn_func
from magi_attention.dist_attn_runtime_mgr import check_flag_comb
from test_api_names import rows_of

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "MAGI_ATTENTION_"

# What signatures of later releases have not: the names of 1.1.1 beside the present ones.
BESIDE = {
    ("flex_flash_attn_func", name): "the name of 1.1.1"
    for name in (
        "index_attn_indices", "k_block_size", "auto_range_merge", "sparse_load", "index_attn",
    )
} | {("AttnArg.to_ffa_args", "device"): "host memory unless asked for"}  # fmt: skip

# Arguments that go with lists of keys in place of ranges.
BY_LISTS = ("index_sparse", "index_attn", "sparse_k_block_size", "k_block_size", "q_block_size")


def broken(call, *arguments) -> str:
    """What goes wrong in a call, in one line; empty where nothing does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


@mock.patch.dict(listed.DEVIATIONS, BESIDE)
def named() -> list[tuple[str, str]]:
    return list(names())


def names() -> Iterator[tuple[str, str]]:
    for file in ("api_names.tsv", "compat_names.tsv"):
        for module, name, kind, text in listed.names_of(rows_of(file)):
            found = broken(listed.test_name, module, name, kind, text)
            yield f"{module}.{name} ({kind})", found
            if text.startswith("("):
                for parameter in listed.wanted_signature(module, text):
                    yield f"{module}.{name}({parameter}=)", found


def pairs_of(file: str) -> Iterator[tuple[str, str]]:
    """Each name of a list with each of its values."""
    for _, names, values in rows_of(file):
        yield from product(names.split(), values.split())


def arguments() -> Iterator[tuple[str, str]]:
    q = torch.zeros(8, 2, 8)
    index = torch.zeros(8, 2, 128, dtype=torch.int32)
    values = {"sink": torch.zeros(1, 2), "index": index}
    ranges = torch.tensor([[0, 8]], dtype=torch.int32)
    for name, value in pairs_of("compat_arguments.tsv"):
        mask = {"index_sparse_indices": index} if name in BY_LISTS else {}
        if name.endswith("_indices"):
            mask = {}
        elif not mask:
            mask = {"q_ranges": ranges, "k_ranges": ranges}
        given = mask | {name: eval(value, values)}
        found = broken(lambda given: flex_flash_attn_func(q, q, q, **given), given)
        yield f"flex_flash_attn_func({name}={value})", found


def variables() -> Iterator[tuple[str, str]]:
    told = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    cleared = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    cleared |= {PREFIX + "LIBRARY": os.environ.get(PREFIX + "LIBRARY", "")}
    for name, value in pairs_of("compat_variables.tsv"):
        with mock.patch.dict(os.environ, {**cleared, name: value}, clear=True):
            found = broken(check_flag_comb)
        if f"`{name.removeprefix(PREFIX)}`" not in told:
            found = "not in docs/environment.md"
        yield f"{name}={value}", found


def count() -> tuple[int, dict[str, str]]:
    """How many there are, and what is wrong with those that do not work."""
    found = [*named(), *arguments(), *variables()]
    return len(found), {what: wrong for what, wrong in found if wrong}
