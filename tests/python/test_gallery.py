# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/gallery.md are those of its examples, and every front end is there."""

import importlib.util
import re

import pytest

from magi_attention import masks
from test_docs import ROOT

spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools/docsite/gallery.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)


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
