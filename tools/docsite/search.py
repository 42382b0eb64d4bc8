# SPDX-License-Identifier: Apache-2.0
"""Whether the site's search finds what people type: words that they use, and the page that answers.

A page is found where each part of what is typed is one of its tokens, as lunr has them with the
separator of mkdocs.yml. browser.py types the words into the built site.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANSWERS = {
    "TRL": "quickstart/transformers.md",
    "GRPO": "rl.md",
    "LoRA": "integrations.md",
    "MLA": "integrations.md",
    "A100": "backends.md",
    "RTX 4090": "backends.md",
    "Blackwell": "backends.md",
    "offline": "install.md",
    "resume": "troubleshooting.md",
    "multi-node": "hosts.md",
    "out of memory": "troubleshooting.md",
    "CUDA 12": "install.md",
}


def separator():
    """The regular expression between tokens, of mkdocs.yml."""
    text = (ROOT / "tools/docsite/mkdocs.yml").read_text(encoding="utf-8")
    return re.compile(re.search(r"separator: '(.*)'", text)[1])


def tokens(text):
    """Those of a text, in lower case."""
    return {token.lower() for token in separator().split(text) if token}


def found():
    """The words that are found on the page that answers."""
    pages = {page: tokens((ROOT / "docs" / page).read_text("utf-8")) for page in ANSWERS.values()}
    return [word for word, page in ANSWERS.items() if tokens(word) <= pages[page]]
