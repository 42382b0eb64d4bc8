# SPDX-License-Identifier: Apache-2.0
"""The constants of a cluster's kernels: the fit itself, and that code and docs have its result."""

import json
import re
import sys
import unittest

from load import TOOLS

ROOT = TOOLS.parent
sys.path.insert(0, str(ROOT / "bench"))

import simulate_fit  # noqa: E402

CONSTANTS = ("pairs_per_row", "pairs_per_edge", "seconds_per_launch", "flops_per_second")


def documented():
    """The cluster of docs/simulate.md."""
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    return json.loads(re.search(r"```json\n(.*?)```", text, re.S).group(1))


def default_constants(which):
    """The initializers of one pass in src/simulate/cluster.hpp."""
    text = (ROOT / "src" / "simulate" / "cluster.hpp").read_text(encoding="utf-8")
    body = re.search(rf"KernelRates {which}\{{(.*?)\}};", text, re.S).group(1)
    return {name: float(value) for name, value in re.findall(r"\.(\w+) = ([\w.-]+)", body)}


class SimulateFit(unittest.TestCase):
    def test_counts_rows_and_bounds_of_slices(self):
        free = simulate_fit.INFINITE
        causal, full = (0, 4, 0, 4, -free, 0), (4, 6, 0, 4, -free, free)
        self.assertEqual(simulate_fit.counts([causal, full]), (10 + 8, 6, 4))

    def test_defaults_are_the_fit_rounded(self):
        cluster = documented()
        for which in ("forward", "backward"):
            worst, *fitted = simulate_fit.fit(which)
            self.assertLess(worst, 1.05)
            constants = default_constants(which)
            for name, value in zip(CONSTANTS, fitted, strict=True):
                with self.subTest(f"{which}_{name}"):
                    self.assertAlmostEqual(constants[name], value, delta=0.01 * value + 1e-9)
                    self.assertEqual(cluster[f"{which}_{name}"], constants[name])


if __name__ == "__main__":
    unittest.main()
