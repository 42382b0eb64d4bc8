# SPDX-License-Identifier: Apache-2.0
"""What the recipes of this folder share: options, text to learn, and lines that tell of steps."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "llama_cp"))

from text import IGNORED, Packed, Text
from trainer import end_rank

__all__ = ["IGNORED", "Packed", "Progress", "end_rank", "parser_of", "sequences", "start"]
_DIFFERENT = 4  # sequences, which then come again


def parser_of(text: str) -> argparse.ArgumentParser:
    """The options of all recipes; text: what `--help` says."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1 << 20, help="of a sequence, on all ranks")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, help="fewer than the model has, for a trial")
    parser.add_argument("--rate", type=float, default=1e-5, help="of learning")
    parser.add_argument("--small", action="store_true", help="a small model, to try it")
    parser.add_argument("--out", type=pathlib.Path, help="a file for the losses, as JSON")
    return parser


def start() -> torch.device:
    """Joins the ranks that torchrun has started; this one's device, a GPU where there are some."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    torch.cuda.set_device(device := torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    return device


def sequences(given: argparse.Namespace, device: torch.device) -> Iterator[Packed]:
    """A sequence for each step, the same on all ranks: texts that Python brings, whose bytes are
    the tokens. Put your own data here: ids, targets (what each row is to predict, IGNORED for
    nothing) and positions within documents, int64 [tokens], and bounds of documents, int32
    [documents + 1].
    """
    text = Text(given.tokens, min(given.steps, _DIFFERENT), max(given.tokens // 4, 24))
    for step in range(given.steps):
        packed = text.sequence(step % text.num_sequences)
        yield Packed(**{name: tensor.to(device) for name, tensor in vars(packed).items()})


class Progress:
    """Prints a line for each step on the first rank of a group; keeps the losses."""

    def __init__(self, given: argparse.Namespace, group: dist.ProcessGroup | None = None) -> None:
        self.losses: list[float] = []
        self._given, self._group, self._begin = given, group, time.perf_counter()

    def end_step(self, loss: torch.Tensor) -> None:
        """loss: this rank's part of the step's. Collective."""
        dist.all_reduce(loss := loss.detach().clone(), group=self._group)
        ranks, is_first = dist.get_world_size(self._group), dist.get_rank(self._group) == 0
        self.tell(loss.item(), self._given.tokens, ranks, is_first)

    def tell(self, loss: float, tokens: int, ranks: int, is_first: bool) -> None:
        """Of a step that has ended; is_first: whether this rank prints."""
        self.losses.append(loss)
        now = time.perf_counter()
        seconds, self._begin = now - self._begin, now
        if not is_first:
            return
        given, step = self._given, len(self.losses)
        speed, left = tokens / seconds, (given.steps - step) * seconds
        line = (
            f"step {step} of {given.steps}  loss {loss:.4f}  {seconds:.1f} s  "
            f"{speed:,.0f} tokens/s, {speed / ranks:,.0f} a rank  {left / 60:.0f} min left"
        )
        if torch.cuda.is_available():
            line += f"  {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most"
        print(line, flush=True)
        if given.out:
            given.out.write_text(json.dumps(self.losses), encoding="utf-8")
