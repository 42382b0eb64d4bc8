#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps on random batches over 2 and 4 ranks on the host against one process, in float64, by the
code of the tests: models with full attention and windows, and prefix trees.

  batch.exact  share of batches whose loss and gradients are those of one process
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def right(group, seeds: range) -> list[bool]:
    from test_batch_training import ALLOWED, error_of

    return [error_of(group, seed) <= ALLOWED for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--batches", type=int, default=200)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/python"))
    from ranks import Ranks

    ranks, found = Ranks(seconds=1200), []
    for size in (2, 4):
        found += ranks.run(size, right, range(size // 4, options.batches, 2))[0]
    ranks.stop()
    rows = [{"name": "batch.exact", "value": sum(found) / len(found), "unit": "share"}]
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
