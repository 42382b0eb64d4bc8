# SPDX-License-Identifier: Apache-2.0
import unittest

from load import tool

rows = tool("gpu_kit/rows")


def result(mask, length, ratios, **more):
    return {
        "mask": mask,
        "rows": length,
        "dim": 128,
        "draw": 0,
        **more,
        "ours": {kernel: {"ratio": ratio} for kernel, ratio in ratios.items()},
    }


def values(*reports):
    return {
        row["name"]: row["value"]
        for row in rows.rows_of([{"results": list(report)} for report in reports])
    }


class Rows(unittest.TestCase):
    def test_other_libraries_have_rows_of_their_own(self):
        peers = {
            "flex": {"ours_over_flex": 2.0},
            "fa4": {"ours_over_fa4": 1.02},
            "cudnn_flex": {"ours_over_cudnn_flex": 1.1},
        }
        self.assertEqual(
            values([result("prefix_tree", 8192, {"fast": 0.8}, **peers)]),
            {
                "backward.prefix_tree.8k": 0.8,
                "backward.prefix_tree.8k.over_flex": 2.0,
                "backward.prefix_tree.8k.over_fa4": 1.02,
                "backward.prefix_tree.8k.over_cudnn_flex": 1.1,
            },
        )


if __name__ == "__main__":
    unittest.main()
