# SPDX-License-Identifier: Apache-2.0
"""bench/peer_plots.py: which bars a report of compare_attention.py makes."""

import pathlib
import sys
from xml.etree import ElementTree

sys.path.append(str(pathlib.Path(__file__).parents[2] / "bench"))

import peer_plots


def result(mask, rate, kernel="128x128", dim_v=128, **peers):
    return {
        "mask": mask,
        "rows": 16384,
        "dim": 128 if dim_v == 128 else 192,
        "dim_v": dim_v,
        "cudnn_tflops": 500.0,
        "ours": {kernel: {"tflops": rate}, "deterministic": {"tflops": 1.0}},
        **{peer: {"tflops": value} for peer, value in peers.items()},
    }


def report(*results):
    return {"device": "a GPU & another", "results": list(results)}


def test_bars_are_medians_by_direction_case_and_side(tmp_path):
    reports = [report(result("full", rate, fa4=600.0)) for rate in (610.0, 650.0, 640.0)]
    reports.append(report(result("prefix_tree", 400.0, "fast", cudnn_flex=300.0)))
    found = peer_plots.collect(reports)
    assert list(found) == ["forward", "backward"]
    assert sorted(found["forward"]["full 16k"]) == ["FlashAttention-4", "cuDNN", "magi"]
    # cuDNN has no such mask: what it does on another one is no bar beside these.
    assert found["backward"] == {"prefix tree 16k": {"magi": [400.0], "cuDNN flex": [300.0]}}
    paths = peer_plots.draw(reports, tmp_path)
    assert [path.name for path in paths] == ["peers-forward.svg", "peers-backward.svg"]
    bars = {element.text for element in ElementTree.parse(paths[0]).iter() if element.text}
    assert {"magi 640.000", "FlashAttention-4 600.000", "cuDNN 500.000", "full 16k", "640"} <= bars
