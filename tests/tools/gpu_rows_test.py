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


def values(*reports, device="NVIDIA H200"):
    given = [{"device": device, "results": list(report)} for report in reports]
    return {row["name"]: row["value"] for row in rows.rows_of(given)}


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

    def test_the_worst_dense_mask_of_an_h100(self):
        reports = [
            [
                result(mask, length, {kernel: 1.0}, fa4={"ours_over_fa4": ratio + length / 1e5})
                for mask, ratio in (("full", 0.9), ("causal", 1.0))
                for length in (8192, 32768)
            ]
            for kernel in ("ours", "fast")
        ]
        name, h100 = "h100.over_fa4.worst", "NVIDIA H100 80GB HBM3"
        self.assertEqual(values(*reports, device=h100)[name], 0.9819)
        self.assertNotIn(name, values(*reports))
        self.assertNotIn(name, values(reports[0], device=h100))


if __name__ == "__main__":
    unittest.main()
