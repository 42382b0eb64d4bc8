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
    def test_the_median_over_reports_of_the_first_kernel(self):
        reports = [[result("full", 8192, {"a": ratio, "b": 9})] for ratio in (1.0, 1.3, 1.1)]
        self.assertEqual(values(*reports), {"forward.full.8k": 1.1})

    def test_head_dims_other_than_128_are_named(self):
        self.assertEqual(
            values([result("causal", 16384, {"a": 1}, dim=64)]), {"forward.hd64.causal.16k": 1}
        )
        report = [result("full", 16384, {"fast": 1}, dim=192, dim_v=128)]
        self.assertEqual(values(report), {"backward.mla.full.16k": 1})

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

    def test_the_other_build_is_compared_by_its_worst_case(self):
        report = [result("full", 8192, {"a": 1.0}), result("causal", 8192, {"a": 1.0})]
        for entry, ratio in zip(report, (1.01, 0.99)):
            entry["ours"]["a"]["over_baseline"] = ratio
        self.assertEqual(values(report)["house.speed"], 0.99)
        again = [result("causal", 8192, {"a": 1.0})]
        again[0]["ours"]["a"]["over_baseline"] = 1.0
        self.assertEqual(values(report, again)["house.speed"], 0.995)

    def test_several_draws_give_a_mean_and_leave_the_figure_alone(self):
        draws = [
            result("varlen_causal", 8192, {"a": ratio}, draw=draw)
            for draw, ratio in enumerate((0.8, 0.9))
        ]
        single = [result("varlen_causal", 8192, {"a": 0.7})]
        self.assertEqual(
            values(draws, single),
            {"forward.varlen_causal.8k": 0.7, "forward.varlen_causal.8k.mean_of_draws": 0.85},
        )

    def test_the_backward_counts_its_fast_mode_and_the_worst_slowdown(self):
        cases = [
            result("full", 2048, {"deterministic": 0.9, "fast": 1.0}, deterministic_slowdown=1.1),
            result("full", 8192, {"deterministic": 0.8, "fast": 1.2}, deterministic_slowdown=1.5),
        ]
        self.assertEqual(
            values(cases),
            {
                "backward.full.2k": 1.0,
                "backward.full.8k": 1.2,
                "backward.deterministic.slowdown": 1.5,
            },
        )

    def test_flex_attention(self):
        case = result("causal", 8192, {"a": 1.2}, flex={"ours_over_flex": 1.6})
        self.assertEqual(values([case])["forward.causal.8k.over_flex"], 1.6)


if __name__ == "__main__":
    unittest.main()
