# SPDX-License-Identifier: Apache-2.0
"""Opens every page of a built site in headless Chromium: browser.py SITE [SCREENSHOTS]

In a wide and in a narrow window. Prints a line for each error of the console, failed request,
request to another host, picture that is not drawn, page that is wider than its window, and word of
search.py whose page is not among the first that the site's search shows; exit code 1 where there is
one, or where one of each kind, planted in a page, is not seen. Needs playwright and a Chromium, the
system's or one that playwright has installed.
"""

import contextlib
import functools
import http.server
import pathlib
import shutil
import sys
import tempfile
import threading

import search
from playwright.sync_api import sync_playwright

WINDOWS = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 390, "height": 844}}
# A page with a fault of each kind, and a word of what is said of it.
PLANTED = """<!doctype html><body><img src="missing.svg"><img src="http://127.0.0.2:9/x.svg">
<div style="width: 2000px">wide</div><script>console.error("said"); undefined_name()</script>"""
KINDS = ("console: said", "script: ", "missing.svg gave 404", "missing.svg is not drawn",
         "is another host's", "wider than the wide", "wider than the narrow")  # fmt: skip
# Pictures without pixels, and how much wider than the window the page is.
LOOK = """() => ({
  missing: [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src),
  excess: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""

FIRST = 5  # pages of a search that people look at
TYPE = """word => {
  const box = document.querySelector(".md-search__input");
  box.focus();
  box.value = word;
  box.dispatchEvent(new Event("keyup", {bubbles: true}));
}"""
SAYS = """words => document.querySelector(".md-search-result__meta").innerText.match(words)"""
LINKS = "links => links.map(link => new URL(link.href).pathname.slice(1))"


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Says nothing."""


@contextlib.contextmanager
def served(folder):
    """The address under which a folder is served meanwhile."""
    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def watch(tab, address, note):
    """Calls `note` with a sentence for what goes wrong in a tab from now on."""
    tab.on("console", lambda message: message.type == "error" and note(f"console: {message.text}"))
    tab.on("pageerror", lambda error: note(f"script: {error}"))
    tab.on("requestfailed", lambda request: note(f"{request.url} failed"))
    tab.on("response", lambda answer: answer.status >= 400 and note(
        f"{answer.url} gave {answer.status}"))  # fmt: skip
    tab.on("request", lambda request: request.url.startswith(("http:", "https:"))
           and not request.url.startswith(address)
           and note(f"{request.url} is another host's"))  # fmt: skip


def browse(site, screenshots, address, browser):
    """The names of all pages and their faults."""
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    faults = []
    for name in names:
        found = faults_of(name, screenshots, address, browser)
        faults += [f"{name}: {fault}" for fault in found]
    return names, faults


def faults_of(name, screenshots, address, browser):
    """Those of one page, which is loaded once, before its window is made narrow."""
    faults = []
    tab = browser.new_page()
    watch(tab, address, faults.append)
    tab.set_viewport_size(WINDOWS["wide"])
    tab.goto(address + name, wait_until="load")
    for window, size in WINDOWS.items():
        tab.set_viewport_size(size)
        seen = tab.evaluate(LOOK)
        faults += [f"{url} is not drawn" for url in seen["missing"]]
        if seen["excess"] > 0:
            faults.append(f"{seen['excess']} pixels wider than the {window} window")
        if screenshots:
            tab.screenshot(path=screenshots / window / (name.replace("/", "_") + ".png"))
    tab.close()
    return list(dict.fromkeys(faults))


def shown(word, tab):
    """The first pages that the site's search shows for a word, as paths of the site."""
    for typed, answer in (("", "Type to start"), (word, "matching")):
        tab.evaluate(TYPE, typed)
        tab.wait_for_function(SAYS, arg=answer)
    links = tab.eval_on_selector_all(".md-search-result__link", LINKS)
    return list(dict.fromkeys(links))[:FIRST]


def unfound(address, browser):
    """A sentence for each word that people type and whose page the site's search does not show, and
    for one of no page where it is found.
    """
    tab = browser.new_page()
    tab.goto(address + "index.html", wait_until="load")
    found = {word: shown(word, tab) for word in search.ANSWERS}
    faults = [f"search for {word!r} shows {', '.join(found[word])}, not {page}"
              for word, page in search.ANSWERS.items()
              if page.removesuffix(".md") + ".html" not in found[word]]  # fmt: skip
    if shown("qwxyzv", tab):
        faults.append("planted and not seen: a word of no page")
    tab.close()
    return faults


def unseen(browser):
    """Kinds of faults that are not seen in a page which has them."""
    with tempfile.TemporaryDirectory() as folder, served(folder) as address:
        (pathlib.Path(folder) / "page.html").write_text(PLANTED, encoding="utf-8")
        found = "\n".join(faults_of("page.html", None, address, browser))
    return [kind for kind in KINDS if kind not in found]


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    screenshots = pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, served(site) as address:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        names, faults = browse(site, screenshots, address, browser)
        faults += [f"planted and not seen: {kind}" for kind in unseen(browser)]
        faults += unfound(address, browser)
        version = browser.version
        browser.close()
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    counts = f"{len(names)} pages, {len(search.ANSWERS)} searches, {len(faults)} faults"
    print(f"Chromium {version}: {counts}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
