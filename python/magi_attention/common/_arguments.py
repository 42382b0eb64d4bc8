# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: one sentence with the argument, its value and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MAX_ROWS = (1 << 30) - 1  # of a mask
TRY = "; try: "  # before the next step, which ends a sentence where there is one


def check_kind(name: str, value: Any, kinds: type | tuple[type, ...], allowed: str) -> None:
    """TypeError unless value is of one of the kinds; `allowed` says them in words."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} is a {type(value).__name__}; allowed: {allowed}")


def check_int(name: str, value: Any, lowest: int, highest: int | None = None) -> int:
    """value as an int. TypeError for what is no integer, ValueError outside [lowest, highest]."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; allowed: an int") from None
    if number < lowest or (highest is not None and number > highest):
        allowed = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
        raise ValueError(f"{name} is {number}; allowed: {allowed}")
    return number


def as_bool(name: str, value: Any) -> bool:
    """value as a bool. TypeError for what is no bool of Python, NumPy or torch: each str but the
    empty one counts as true, "no" too.
    """
    if isinstance(value, bool):
        return value
    if str(getattr(value, "dtype", "")) in ("bool", "torch.bool") and value.ndim == 0:
        return bool(value)
    raise TypeError(f"{name} is {value!r}; allowed: a bool; try: True or False")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """TypeError for what is no str, ValueError for one that is none of the choices."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}; allowed: a str")
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(choices)}")


def check_number(name: str, value: Any) -> None:
    """TypeError for what is no number. Compilers can trace it for symbolic floats."""
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise TypeError(f"{name} is a {type(value).__name__}; allowed: a float")


def without_padding(bounds: Any) -> Any:
    """Bounds of documents, a list or tensor, without the entries below 0 that fill their end."""
    count = len(bounds)
    while count > 1 and bounds[count - 1] < 0:
        count -= 1
    return bounds[:count]


def check_window(window_size: Sequence[int]) -> tuple[int, int]:
    """(left, right) with sides beyond every sequence brought into the library's integers."""
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(
            f"window_size is {window_size!r}; allowed: (left, right); "
            "try: (left, 0), -1 for no bound"
        ) from None
    sides = (("window_size[0]", left), ("window_size[1]", right))
    return tuple(min(check_int(name, side, -1), MAX_ROWS) for name, side in sides)


@contextmanager
def trying(step: str, where: str = "") -> Iterator[None]:
    """An error whose sentence holds `where` gets the next step at its end, unless it has one."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if where in str(error) and TRY not in str(error):
            raise type(error)(f"{error}{TRY}{step}") from None
        raise


@contextmanager
def naming(**names: str) -> Iterator[None]:
    """An error about an inner name becomes one about the argument's: inner=outer. An inner name
    with a dot is written with two underscores.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        for inner, outer in names.items():
            inner = inner.replace("__", ".")
            if text.startswith((inner + " ", inner + "[")):
                raise type(error)(outer + text[len(inner) :]) from None
        raise
