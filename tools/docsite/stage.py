# SPDX-License-Identifier: Apache-2.0
"""Lays out the pages that MkDocs reads: docs/ as it is, and a page for each file of the repository
that a page links to outside of docs/, as a site has no repository around it.
"""

import pathlib
import re
import shutil

# Inline links and pictures without spaces in their targets.
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
LANGUAGES = {
    ".cpp": "cpp", ".hpp": "cpp", ".h": "c", ".c": "c", ".cu": "cuda", ".cuh": "cuda",
    ".py": "python", ".json": "json", ".txt": "cmake", ".toml": "toml", "": "text",
}  # fmt: skip


def target_of(page, link, root):
    """The path from `root` of the file that `link` names on `page`, a path from `root` too; None
    for links to elsewhere and for what does not exist.
    """
    if "://" in link or link.startswith("mailto:"):
        return None
    path = (root / page.parent / link).resolve()
    if path.is_dir():
        path /= "README.md"
    if not path.is_file() or not path.is_relative_to(root):
        return None
    return path.relative_to(root)


def place_of(path):
    """Where the site has a file of the repository: pages of docs/ at their path below it, others
    under source/, those that are not Markdown as a page that shows them."""
    if path.parts[0] == "docs":
        return pathlib.PurePosixPath(*path.parts[1:])
    place = pathlib.PurePosixPath("source") / path.as_posix()
    return place if path.suffix in (".md", ".svg") else place.with_name(place.name + ".md")


def relative(place, page_place):
    """The link from one place of the site to another."""
    up = [".."] * (len(page_place.parts) - 1)
    return "/".join([*up, *place.parts])


def rewritten(text, page, root):
    """The text of a page with links to places of the site, and the files outside of docs/ that it
    links to.
    """
    outside = []
    page_place = place_of(page)

    def replace(match):
        target = target_of(page, match[2], root)
        if target is None:
            return match[0]
        if target.parts[0] != "docs":
            outside.append(target)
        elif page.parts[0] == "docs":
            return match[0]
        return match[1] + relative(place_of(target), page_place) + (match[3] or "") + match[4]

    # Code is left as it is.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts), outside


def shown(path, text):
    """A page that shows a file of the repository."""
    fence = "````"
    return f"# {path.as_posix()}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}{fence}\n"


def stage(root, folder):
    """Writes the pages of the repository at `root` into `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    waiting = [path.relative_to(root) for path in sorted((root / "docs").rglob("*"))
               if path.is_file()]  # fmt: skip
    known = set(waiting)
    while waiting:
        path = waiting.pop()
        place = folder / place_of(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text, outside = rewritten((root / path).read_text(encoding="utf-8"), path, root)
            place.write_text(text, encoding="utf-8")
            waiting += [target for target in dict.fromkeys(outside) if target not in known]
            known |= set(outside)
        elif path.parts[0] == "docs" or path.suffix == ".svg":
            shutil.copyfile(root / path, place)
        else:
            place.write_text(shown(path, (root / path).read_text(encoding="utf-8")), "utf-8")
    shutil.copyfile(root / "tools/docsite/extra.css", folder / "extra.css")
