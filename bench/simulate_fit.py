#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the kernel constants of `magi simulate`'s clusters to times of the kernel alone on an H200.

For each pass it prints the constants whose worst relative error over all recorded masks is least,
on a grid, and that error. The defaults of src/simulate/cluster.hpp are these, rounded.
"""

import itertools

from attention_masks import INFINITE, area
from simulate_error import FLOPS_PER_PAIR, PASSES, recorded

PAIRS_PER_ROW = range(0, 400, 10)
PAIRS_PER_EDGE = range(0, 200, 10)
LAUNCH_SECONDS = (0.0, 10e-6, 20e-6, 30e-6, 40e-6, 60e-6, 80e-6, 100e-6, 120e-6)


def counts(slices):
    """Visible pairs, query rows of all slices, and these for each bound of the diagonals."""
    rows = sum(q1 - q0 for q0, q1, *_ in slices)
    edges = sum(
        (q1 - q0) * ((low > -INFINITE) + (high < INFINITE)) for q0, q1, _, _, low, high in slices
    )
    return area(slices), rows, edges


def fit(which):
    """(worst ratio, pairs per row, pairs per edge, launch seconds, flops per second)."""
    cells = [(*counts(slices), seconds) for _, _, slices, seconds in recorded(which)]

    def candidate(per_row, per_edge, launch):
        rates = [
            (pairs + per_row * rows + per_edge * edges) * FLOPS_PER_PAIR[which] / (seconds - launch)
            for pairs, rows, edges, seconds in cells
        ]
        # The rate in the middle of the cells' own is as far from the fastest as from the slowest.
        high, low = max(rates), min(rates)
        return (high / low) ** 0.5, per_row, per_edge, launch, (high * low) ** 0.5

    grid = itertools.product(PAIRS_PER_ROW, PAIRS_PER_EDGE, LAUNCH_SECONDS)
    return min(candidate(*point) for point in grid)


def main():
    for which in PASSES:
        worst, per_row, per_edge, launch, rate = fit(which)
        print(
            f"{which}_flops_per_second {rate:.3g}, {which}_pairs_per_row {per_row}, "
            f"{which}_pairs_per_edge {per_edge}, {which}_seconds_per_launch {launch:g}: "
            f"worst {worst:.3f}"
        )


if __name__ == "__main__":
    main()
