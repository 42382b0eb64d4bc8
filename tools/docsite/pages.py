# SPDX-License-Identifier: Apache-2.0
"""What the pages of a built site hold, read from their HTML: links and pictures that lead nowhere,
requests to other hosts, pages without a picture or an example, Markdown that stayed text.
"""

import html.parser
import re
import urllib.parse

# A list or a table that Markdown took for a line of its paragraph.
RAW = re.compile(r"\n\s*([-*+]|\d+\.) +\S|\n\s*\|.*\||^\|.*\|$")
# What the browser fetches by itself.
FETCHED = {"img": "src", "script": "src", "source": "src", "iframe": "src"}


class Page(html.parser.HTMLParser):
    """Anchors, links and what it shows of one page. `content` is what lies inside of <article>."""

    def __init__(self, text):
        super().__init__()
        self.anchors = set()
        self.links = []
        self.fetched = []
        self.pictures = 0
        self.examples = 0
        self.paragraphs = []
        self.depth = 0
        self.is_in_paragraph = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.anchors |= {named[key] for key in ("id", "name") if named.get(key)}
        if tag == "a" and named.get("href"):
            self.links.append(named["href"])
        if tag in FETCHED and named.get(FETCHED[tag]):
            self.fetched.append(named[FETCHED[tag]])
        if tag == "link" and named.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.fetched.append(named["href"])
        if tag == "article":
            self.depth += 1
        if self.depth:
            self.pictures += tag == "img"
            self.examples += tag == "pre"
            if tag == "p":
                self.is_in_paragraph = True
                self.paragraphs.append("")

    def handle_endtag(self, tag):
        if tag == "article":
            self.depth -= 1
        if tag == "p":
            self.is_in_paragraph = False

    def handle_data(self, data):
        if self.is_in_paragraph:
            self.paragraphs[-1] += data


def read(folder):
    """The pages of a site by their path in it."""
    return {
        path.relative_to(folder).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.html"))
        if path.name != "404.html"  # its links are those of any place
    }


def bare(pages):
    """Paths of pages that have neither a picture nor an example."""
    return [path for path, page in pages.items() if not page.pictures and not page.examples]


def fault_of(link, path, pages, folder):
    """Why a link of a page leads nowhere, or None."""
    url = urllib.parse.urlsplit(link)
    if url.scheme or url.netloc:
        return None
    name = urllib.parse.unquote(url.path)
    target = (folder / path).parent / name if name else folder / path
    if target.is_dir():
        target /= "index.html"
    target = target.resolve()
    if not target.is_relative_to(folder) or not target.is_file():
        return "there is no such file"
    place = target.relative_to(folder).as_posix()
    fragment = urllib.parse.unquote(url.fragment)
    if fragment and place in pages and fragment not in pages[place].anchors:
        return "there is no such anchor"
    return None


def faults(pages, folder):
    """One sentence for each fault of the pages, which lie in `folder`."""
    folder = folder.resolve()
    found = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links + page.fetched):
            fault = fault_of(link, path, pages, folder)
            if fault:
                found.append(f"{path}: {link}: {fault}")
        for link in page.fetched:
            if urllib.parse.urlsplit(link).netloc:
                found.append(f"{path}: {link} is fetched from another host")
        for text in page.paragraphs:
            if RAW.search(text):
                found.append(f"{path}: a list or table is text: {text.strip()[:60]!r}")
    return found
