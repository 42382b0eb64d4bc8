# SPDX-License-Identifier: Apache-2.0
"""Results of attention that a checkpoint keeps, so that recomputation is given them.

Contexts of checkpoints find attention where it is called. torch's selective checkpoints see every
operator of a layer in Python instead, which takes the host longer than a short layer takes a GPU.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch


class _State(threading.local):
    context: _Context | None = None


_state = _State()


def kept(function: Callable, *arguments: Any) -> Any:
    """function(*arguments), a tuple or list of tensors and Nones; or what it gave when a checkpoint
    around ran for the first time.
    """
    if torch.compiler.is_compiling() or (context := _state.context) is None:
        return function(*arguments)
    return context.call(function, arguments)


class _Context:
    """A context that handles calls inside of its `with`."""

    outer: _Context | None = None

    def __enter__(self) -> _Context:
        self.outer, _state.context = _state.context, self
        return self

    def __exit__(self, *_: Any) -> None:
        self.outer, _state.context = None, self.outer

    def call(self, function: Callable, arguments: tuple) -> Any:
        raise NotImplementedError

    def call_outside(self, function: Callable, arguments: tuple) -> Any:
        """The call as it would be without this context."""
        outer = self.outer
        return function(*arguments) if outer is None else outer.call(function, arguments)


class Keeping(_Context):
    """Keeps the results of calls, for Giving. pack(tensor) -> what is kept of a result, of which
    unpack makes the tensor.
    """

    def __init__(self, pack: Callable, unpack: Callable) -> None:
        self._pack, self._unpack = pack, unpack
        self._found: list[list[Any]] = []

    def call(self, function: Callable, arguments: tuple) -> Any:
        results = self.call_outside(function, arguments)
        if torch.is_inference_mode_enabled():  # nothing is computed again
            return results
        packed = [None if x is None else self._pack(x.detach()) for x in results]
        self._found.append(packed)
        return results

    def results(self, number: int) -> list[torch.Tensor | None]:
        """Those of the call of this number."""
        packed = self._found[number]
        return [None if one is None else self._unpack(one).detach() for one in packed]

    def contexts(self) -> tuple[Any, Any]:
        """Those of its checkpoint."""
        return self, _Giving(self, 0)

    def contexts_inside(self) -> tuple[Any, Any]:
        """Those of a checkpoint inside."""
        return contextlib.nullcontext(), _Giving(self, len(self._found))


class _Giving(_Context):
    """Gives what calls gave before, from the call of this number on."""

    def __init__(self, keeping: Keeping, first: int) -> None:
        self._keeping, self._first, self._next = keeping, first, first

    def __enter__(self) -> _Context:
        self._next = self._first  # a graph that is retained is recomputed again
        return super().__enter__()

    def call(self, function: Callable, arguments: tuple) -> Any:
        self._next += 1
        return self._keeping.results(self._next - 1)


def keeping_around() -> Keeping | None:
    """The context that calls go through, if it keeps."""
    context = _state.context
    return context if isinstance(context, Keeping) else None
