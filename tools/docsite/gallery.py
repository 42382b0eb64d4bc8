# SPDX-License-Identifier: Apache-2.0
"""Draws the masks of docs/gallery.md: gallery.py [FOLDER], docs/pictures/gallery by default.

Each picture of the page shows the `mask` that the example above it has made. Needs magi_attention.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "pictures" / "gallery"
PART = re.compile(r"```python\n(?P<code>.*?)```|!\[(?P<title>.*?)\]\((?P<path>\S+)\)", re.S)


def drawn(text):
    """(file name, SVG text) of each picture of a page; ValueError for one that no example makes."""
    shown = {}
    for part in PART.finditer(text):
        if part["code"] is not None:
            exec(part["code"], shown)
            continue
        if "mask" not in shown:
            raise ValueError(f"no example above {part['path']} makes a mask")
        yield pathlib.PurePosixPath(part["path"]).name, shown.pop("mask").draw(part["title"])


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in drawn(PAGE.read_text(encoding="utf-8")):
        (folder / name).write_text(picture, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
