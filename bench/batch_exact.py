#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps on random batches over 2 and 4 ranks on the host against one process, in float64, by the
code of the tests: models with full attention and windows, hybrids, and prefix trees.

  batch.exact  share of batches whose loss and gradients are those of one process
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def errors(group, seeds: range) -> list[float]:
    from test_batch_training import error_of

    return [error_of(group, seed) for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--batches", type=int, default=200)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/python"))
    from ranks import Ranks
    from test_batch_training import ALLOWED

    ranks, half = Ranks(seconds=1200), options.batches // 2
    found = ranks.run(2, errors, range(half))[0]
    found += ranks.run(4, errors, range(half, options.batches))[0]
    ranks.stop()
    print(f"largest relative error {max(found):.3g}")
    share = sum(error <= ALLOWED for error in found) / len(found)
    rows = [{"name": "batch.exact", "value": share, "unit": "share"}]
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
