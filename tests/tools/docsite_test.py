# SPDX-License-Identifier: Apache-2.0
import pathlib
import tempfile
import unittest

from load import TOOLS  # isort: split

from docsite import menu, pages, search, stage

ARTICLE = "<html><body><nav><img src=a.svg></nav><article>{}</article></body></html>"


class Stage(unittest.TestCase):
    def folder(self, files):
        """A folder with these files; pages of the site are laid out beside it."""
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        root = pathlib.Path(holder.name).resolve() / "root"
        style = TOOLS / "docsite" / "extra.css"
        for name, text in {"tools/docsite/extra.css": style.read_text(), **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return root, root.parent / "pages"

    def test_files_outside_of_docs_become_pages(self):
        root, laid_out = self.folder(
            {
                "docs/kernels/a.md": "[x](../../src/x.hpp#L3) [b](../b.md#c) [w](https://x.org/y)",
                "docs/b.md": "[folder](../examples) [gone](gone.md) `[0](../src/x.hpp)`",
                "src/x.hpp": "int x;\n",
                "src/unseen.hpp": "",
                "examples/README.md": "![a](../docs/p.svg) [x](../src/x.hpp)",
                "docs/p.svg": "<svg/>",
            }
        )
        stage.stage(root, laid_out)
        text = {path.relative_to(laid_out).as_posix(): path.read_text() for path in
                laid_out.rglob("*") if path.is_file()}  # fmt: skip
        self.assertEqual(
            set(text),
            {"kernels/a.md", "b.md", "p.svg", "extra.css", "source/src/x.hpp.md",
             "source/examples/README.md"},
        )  # fmt: skip
        self.assertEqual(
            text["kernels/a.md"],
            "[x](../source/src/x.hpp.md#L3) [b](../b.md#c) [w](https://x.org/y)",
        )
        self.assertIn("[folder](source/examples/README.md) [gone](gone.md)", text["b.md"])
        self.assertEqual(
            text["source/examples/README.md"], "![a](../../p.svg) [x](../../source/src/x.hpp.md)"
        )
        self.assertEqual(text["source/src/x.hpp.md"], "# src/x.hpp\n\n````cpp\nint x;\n````\n")


class Search(unittest.TestCase):
    def test_words_that_people_type_are_found_on_the_page_that_answers(self):
        self.assertEqual(search.found(), list(search.ANSWERS))
        self.assertEqual(len(search.ANSWERS), 12)

    def test_tokens_have_no_brackets_and_quotes(self):
        self.assertEqual(
            search.tokens("attention (MLA), `cp_size`/MagiCollator"),
            {"attention", "mla", "cp_size", "magicollator"},
        )


class Pages(unittest.TestCase):
    def site(self, **texts):
        """Pages of a built site by name, and its folder."""
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        folder = pathlib.Path(holder.name)
        (folder / "a.svg").write_text("<svg/>")
        for name, text in texts.items():
            (folder / f"{name}.html").write_text(ARTICLE.format(text))
        return pages.read(folder), folder

    def test_links_and_pictures_that_lead_nowhere(self):
        found, folder = self.site(
            one="<h2 id=here></h2><a href='#here'></a><a href='two.html#there'></a>"
            "<a href='https://x.org/gone'></a><a href='mailto:a@x.org'></a><img src=a.svg>",
            two="<h2 id=there></h2><a href='one.html#gone'></a><a href='three.html'></a>"
            "<img src='b.svg'><a href='../secret.html'></a><a href='#nowhere'></a>",
        )
        self.assertEqual(
            pages.faults(found, folder),
            [
                "two.html: one.html#gone: there is no such anchor",
                "two.html: three.html: there is no such file",
                "two.html: ../secret.html: there is no such file",
                "two.html: #nowhere: there is no such anchor",
                "two.html: b.svg: there is no such file",
            ],
        )


class Menu(unittest.TestCase):
    def test_pages_that_the_menu_does_not_name_follow_the_guides(self):
        given = [{"Home": "index.md"}, {"Guides": [{"A": "a.md"}, {"Deeper": ["x/b.md"]}]}]
        known = ["x/c.md", "index.md", "source/d.md", "a.md", "x/b.md", "pictures/README.md"]
        found = menu.completed(given, known)
        self.assertEqual(menu.named(found), ["index.md", "a.md", "x/b.md", "x/c.md"])
        self.assertEqual(found[1]["Guides"][-1], "x/c.md")
        self.assertEqual(menu.completed(found, known), found)


if __name__ == "__main__":
    unittest.main()
