# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: pages of docs/ that the menu of mkdocs.yml does not name stand at the end of
Guides, so that none is without a way to it.
"""

import pathlib

LAST = "Guides"
# What pages show by a link; not_in_nav of mkdocs.yml names the same.
APART = (
    "source/", "pictures/", "api/", "log/", "performance.md",
    "bounds.md", "calibration.md", "exchange_memory.md", "moving_queries.md", "nodes.md",
    "record.md", "kernels/blocks.md", "kernels/calls.md", "kernels/device_list.md",
    "kernels/listed.md", "kernels/proofs.md", "kernels/schedules.md", "kernels/splits.md",
)  # fmt: skip


def named(menu):
    """Paths of the pages in a menu, in its order."""
    found = []
    for entry in menu:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            found += named(target) if isinstance(target, list) else [target]
    return found


def completed(menu, pages):
    """The menu with all `pages`, paths from the folder of the pages."""
    known = set(named(menu))
    others = [page for page in sorted(pages) if page not in known and not page.startswith(APART)]
    return [{LAST: [*entry[LAST], *others]} if LAST in entry else entry for entry in menu]


def on_config(config):
    folder = pathlib.Path(config.docs_dir)
    pages = [path.relative_to(folder).as_posix() for path in folder.rglob("*.md")]
    config.nav = completed(config.nav, pages)
    return config
