# SPDX-License-Identifier: Apache-2.0
"""Do the curves agree? The yardstick is measured in the same job: how far runs of SDPA that differ
in the order of their additions alone part from each other.
"""

from __future__ import annotations

import itertools
import math

import torch

from runs import Run

GRADIENT_TOLERANCE = 1e-9  # of the largest element of a float64 gradient
MARGIN = 2  # the noise is itself a sample of a few runs

Curves = dict[Run, list[float]]


def distance(a: list[float], b: list[float]) -> float:
    """Root mean square over steps."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / len(a))


def noise(curves: Curves) -> float:
    """The largest distance between two runs of SDPA; at least what rounding makes of the float32
    losses of two runs.
    """
    references = [curve for run, curve in curves.items() if run.is_sdpa]
    zeros = [0.0] * len(references[0])
    rounding = torch.finfo(torch.float32).eps * distance(references[0], zeros)
    pairs = itertools.combinations(references, 2)
    return max(rounding, *(distance(a, b) for a, b in pairs))


def distances(curves: Curves) -> dict[Run, float]:
    """From every run to the nearest run of SDPA that is not itself."""
    references = {run: curve for run, curve in curves.items() if run.is_sdpa}
    return {
        run: min(distance(curve, c) for other, c in references.items() if other != run)
        for run, curve in curves.items()
    }


def gradient_errors(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]
) -> tuple[float, str]:
    """The largest error of a parameter's gradient, relative to its largest element."""
    errors = {
        name: ((found[name] - gradient).abs().max() / gradient.abs().max()).item()
        for name, gradient in wanted.items()
    }
    worst = max(errors, key=errors.get)
    return errors[worst], worst
