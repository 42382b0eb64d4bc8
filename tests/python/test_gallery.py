# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/ that Python draws, and parts of masks: those there are those drawn."""

import importlib.util
import re

import pytest

from magi_attention import masks
from test_docs import ROOT


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/docsite/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gallery = tool("gallery")


def test_pictures_of_context_parallelism_and_memory():
    overview = tool("overview")
    for name, picture in overview.drawn().items():
        assert (overview.PICTURES / name).read_text(encoding="utf-8") == picture, name


def test_parts_of_masks():
    mask = masks.from_cu_seqlens([0, 5, 9])
    assert "queries 2 to 4 of 9, keys 0 to 4 of 9" in mask.draw(rows=(2, 4))
    assert "9 queries, keys 1 to 3 of 9" in mask.draw("part", keys=[1, 3])
    for part, pattern in {
        (4, 2): "rows is 4:2; allowed: BEGIN:END with 0 <= BEGIN < END <= 9",
        (-1, 2): r"rows\[0\] is -1; allowed: 0",
        (1,): r"rows is \(1,\); allowed: \(begin, end\)",
    }.items():
        with pytest.raises(ValueError, match=pattern):
            mask.draw(rows=part)
    with pytest.raises(TypeError, match="keys is a int; allowed"):
        mask.draw(keys=3)


def test_pictures_are_those_of_the_examples():
    drawn = dict(gallery.drawn(gallery.PAGE.read_text(encoding="utf-8")))
    assert sorted(drawn) == sorted(path.name for path in gallery.PICTURES.iterdir())
    for name, picture in drawn.items():
        assert (gallery.PICTURES / name).read_text(encoding="utf-8") == picture, name


def test_every_front_end_is_shown():
    shown = set(re.findall(r"masks\.(from_\w+)\(", gallery.PAGE.read_text(encoding="utf-8")))
    assert shown == {name for name in dir(masks) if name.startswith("from_")}


def test_a_picture_without_an_example_is_refused():
    with pytest.raises(ValueError, match=r"no example above b\.svg makes a mask"):
        list(gallery.drawn("```python\nx = 1\n```\n![a](b.svg)\n"))
