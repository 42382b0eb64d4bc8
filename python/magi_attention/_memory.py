# SPDX-License-Identifier: Apache-2.0
"""`python -m magi_attention memory`: what a training takes of a GPU, and how much fits."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import MISSING, fields
from types import SimpleNamespace

from magi_attention.config import DistAttnConfig
from magi_attention.training import causal_memory, longest_sequence
from magi_attention.training_memory import ModelShape, Training

_LLAMA = ModelShape(32, 4096, 14336, 32, 8, 128, 128256)  # of 8B


def main(arguments: list[str]) -> int:
    """Prints a page; the exit code, 2 for other arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m magi_attention memory",
        description=__doc__,
        allow_abbrev=False,
        epilog="example: --tokens 262144 --ranks 4 --shards 4 --keeps attention --loss-rows 4096",
    )
    parser.add_argument("--tokens", type=int, required=True, help="of one causal document")
    parser.add_argument("--ranks", type=int, default=1, help="that share it; default 1")
    parser.add_argument("--transport", default="nvlink", help="nvlink (default) or nccl")
    parser.add_argument("--gib", type=float, default=76, help="of a GPU that may be used; 76")
    parser.add_argument(
        "--max-exchange-bytes", type=int, help="0: no bound; default: 4 GiB if a plan can"
    )
    parser.add_argument("--config", help="config.json of transformers; default: Llama-8B's sizes")
    for field in (*fields(ModelShape), *fields(Training)):
        name = "--" + field.name.replace("_", "-")
        if field.name == "is_tied":
            parser.add_argument(name, action="store_true", default=None)
        else:
            kind = str if isinstance(field.default, str) else int
            note = "" if field.default is MISSING else f"default {field.default}"
            parser.add_argument(name, type=kind, help=note)
    given = parser.parse_args(arguments)
    try:
        print(_page(given))
    except (OSError, TypeError, ValueError) as error:
        print(f"magi_attention memory: {error}")
        return 2
    return 0


def _page(given: argparse.Namespace) -> str:
    if not 0 < given.gib < math.inf:
        raise ValueError(f"--gib is {given.gib}; allowed: a finite number above 0")
    model = _LLAMA
    if given.config is not None:
        with open(given.config, encoding="utf-8") as file:
            model = ModelShape.from_config(SimpleNamespace(**json.load(file)))
    model = ModelShape(**vars(model) | _chosen(given, ModelShape))
    training = Training(**_chosen(given, Training))
    plan = given.ranks, given.transport, DistAttnConfig(max_exchange_bytes=given.max_exchange_bytes)
    memory = causal_memory(model, training, given.tokens, *plan)
    most = longest_sequence(model, training, int(given.gib * 2**30), *plan)
    return f"{memory}\n{given.gib:g} GiB of each GPU are enough for {most:,} tokens"


def _chosen(given: argparse.Namespace, kind: type) -> dict:
    names = (field.name for field in fields(kind))
    return {name: value for name in names if (value := getattr(given, name)) is not None}
