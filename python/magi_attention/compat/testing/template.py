# SPDX-License-Identifier: Apache-2.0
"""Cases of parameters inside of one test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import product
from typing import Any


def parameterize(argument: str, values: Sequence[Any]) -> Callable:
    """Calls a test with every value for one of its arguments; several on top of each other give
    every combination. A failure names the values that it came with.
    """

    def decorate(test: Callable) -> Callable:
        inner = getattr(test, "parameters", ())
        plain = getattr(test, "without_parameters", test)

        @wraps(plain)
        def run_all(*args, **kwargs) -> None:
            names = [name for name, _ in run_all.parameters]
            for chosen in product(*(options for _, options in run_all.parameters)):
                case = dict(zip(names, chosen))
                try:
                    plain(*args, **kwargs, **case)
                except Exception as error:
                    shown = ", ".join(f"{name}={value!r}" for name, value in case.items())
                    raise AssertionError(
                        f"with {shown}: {type(error).__name__}: {error}"
                    ) from error

        run_all.parameters = ((argument, tuple(values)), *inner)
        run_all.without_parameters = plain
        return run_all

    return decorate
