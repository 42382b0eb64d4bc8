# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import pathlib
import unittest.mock

from load import tool

lint = tool("lint")

from house import budget, cxx, python  # noqa: E402


def findings(check, name, given):
    found = []
    path = pathlib.PurePosixPath(name)
    check(path, given, lambda path, line, message: found.append((line, message)))
    return found


def folder_findings(texts):
    found = []
    cxx.check_folders(texts, lambda path, line, message: found.append((path, line, message)))
    return found


def function_of(lines, head="int f(int a)"):
    return f"namespace magi {{\n{head} {{\n" + "  a += 1;\n" * (lines - 2) + "}\n}\n"


class Lengths(unittest.TestCase):
    def test_a_function_at_the_cap_passes_and_one_line_more_fails(self):
        self.assertEqual(findings(cxx.check_lengths, "src/mask/a.cpp", function_of(50)), [])
        self.assertEqual(
            findings(cxx.check_lengths, "src/mask/a.cpp", function_of(51)),
            [(2, "function of 51 lines; at most 50")],
        )

    def test_long_files_and_lines(self):
        self.assertEqual(len(findings(cxx.check_lengths, "src/a/a.cpp", "int a;\n" * 601)), 1)
        self.assertEqual(len(findings(cxx.check_lengths, "src/a/a.cpp", "/" * 101)), 1)


class Layers(unittest.TestCase):
    def test_includes_go_down_only(self):
        self.assertEqual(
            findings(cxx.check_layers, "src/plan/a.cpp", '#include "mask/band.hpp"\n'), []
        )
        self.assertEqual(
            len(findings(cxx.check_layers, "src/mask/a.cpp", '#include "plan/exchange.hpp"\n')), 1
        )
        self.assertEqual(
            len(findings(cxx.check_layers, "src/plan/a.cpp", "#include <cuda_runtime.h>\n")), 1
        )

    def test_folders_of_a_layer_include_lower_ones_only(self):
        headers = ("rows/b.hpp", "net/b.hpp", "nvlink/c.hpp", "nccl/b.hpp", "engine/b.hpp")
        headers += ("device_rows/b.hpp", "validate.hpp")
        there = {f"src/comm/{header}": "" for header in headers}

        def check(name, *given):
            text = "".join(f'#include "comm/{header}"\n' for header in given)
            return folder_findings({**there, f"src/comm/{name}": text})

        self.assertEqual(check("nvlink/a.cpp", "rows/b.hpp", "net/b.hpp", "nvlink/c.hpp"), [])
        self.assertEqual(check("a.cpp", "nccl/b.hpp", "engine/b.hpp", "validate.hpp"), [])
        self.assertEqual(
            check("nccl/a.cpp", "net/b.hpp", "nvlink/c.hpp"),
            [("src/comm/nccl/a.cpp", 2, "src/comm/nccl may not include src/comm/nvlink/c.hpp")],
        )
        for name, given in (
            ("rows/a.cpp", "device_rows/b.hpp"),
            ("net/a.cpp", "rows/b.hpp"),
            ("engine/a.cpp", "nccl/b.hpp"),
            ("device_rows/a.cu", "engine/b.hpp"),
            ("net/a.cpp", "validate.hpp"),
        ):
            self.assertEqual(len(check(name, given)), 1, name)

    def test_the_checker_of_plans_includes_nothing_that_makes_them(self):
        headers = ("value", "cost", "tables", "work", "placement")
        there = {f"src/plan/{folder}/b.hpp": "" for folder in headers}
        text = "".join(f'#include "plan/{folder}/b.hpp"\n' for folder in headers)
        found = folder_findings({**there, "src/plan/check/a.cpp": text})
        self.assertEqual([line for _, line, _ in found], [3, 4, 5])

    def test_every_folder_of_an_ordered_folder_has_a_place(self):
        for ordered, folders in cxx.FOLDERS.items():
            there = {p.name for p in (lint.ROOT / ordered).iterdir() if p.is_dir()}
            self.assertEqual(there, set(folders))

    def test_asm_has_one_home(self):
        given = 'void f() { asm volatile("nop;"); }\n'
        self.assertEqual(findings(cxx.check_layers, "src/cuda/ptx/a.cuh", given), [])
        self.assertEqual(len(findings(cxx.check_layers, "src/kernels/tile/a.cuh", given)), 1)


def python_function(lines, docstring=""):
    return "def f():\n" + docstring + "    a = 1\n" * (lines - 1)


class Python(unittest.TestCase):
    def test_a_function_at_the_cap_passes_and_one_line_more_fails(self):
        at_cap = python_function(60, '    """One.\n\n    Two.\n    """\n')
        self.assertEqual(findings(python.check_lengths, "tools/a.py", at_cap), [])
        self.assertEqual(
            findings(python.check_lengths, "tools/a.py", python_function(61)),
            [(1, "f has 61 lines; at most 60")],
        )

    def test_imports_go_down_only(self):
        def check(name, given):
            return findings(python.check_layers, f"python/magi_attention/{name}", given)

        self.assertEqual(check("plan.py", "from magi_attention.rows import Rows\n"), [])
        for hidden in ("", "if TYPE_CHECKING:\n    ", "def f():\n    "):
            self.assertEqual(
                check("functional/roll.py", hidden + "from magi_attention.plan import Plan\n"),
                [(hidden.count("\n") + 1, "functional may not import plan")],
            )
        self.assertEqual(len(check("common/a.py", "import magi_attention.env.comm\n")), 1)
        self.assertEqual(len(check("common/a.py", "from magi_attention import plan\n")), 1)
        self.assertEqual(len(check("new_part/a.py", "import os\n")), 1)

    def test_every_part_of_the_package_has_a_level(self):
        package = lint.ROOT / "python" / "magi_attention"
        parts = {
            p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
        }
        self.assertEqual(parts - {"__init__"}, set(python.LEVEL_OF) - {"magi_attention"})


class Circles(unittest.TestCase):
    def test_files_and_folders_that_include_each_other(self):
        texts = {
            "src/plan/a.hpp": '#include "plan/b.hpp"\n',
            "src/plan/b.hpp": '#include "a.hpp"\n#include "missing.hpp"\n',
            "src/comm/x.cpp": '#include "comm/ring/y.hpp"\n',
            "src/comm/x.hpp": "#include <vector>\n",
            "src/comm/ring/y.hpp": '#include "comm/x.hpp"\n',
        }
        self.assertEqual(
            lint.all_circles(texts, {}),
            [("src/plan/a.hpp", "src/plan/b.hpp"), ("src/comm", "src/comm/ring")],
        )

    def test_modules_that_import_each_other(self):
        def package(module, given):
            return {f"python/magi_attention/{module}.py": given}

        for hidden in ("", "if TYPE_CHECKING:\n    ", "def f():\n    "):
            texts = package("env/a", hidden + "from magi_attention.env import b\n")
            texts |= package("env/b", "import magi_attention.env.a\n")
            circle = ("magi_attention.env.a", "magi_attention.env.b")
            self.assertEqual(lint.all_circles({}, texts), [circle])
        texts = package("env/a", "from magi_attention.comm.a import x\n")
        texts |= package("comm/b", "from magi_attention.env.b import x\n")
        texts |= package("env/b", "") | package("comm/a", "")
        self.assertEqual(lint.all_circles({}, texts), [("comm", "env")])

    def test_figures(self):
        texts = {"src/a.cpp": function_of(30), "src/a.cu": function_of(20)}
        scripts = {"tools/a.py": python_function(40)}
        with contextlib.redirect_stderr(io.StringIO()) as said:
            lint.describe(texts, scripts, texts | scripts)
        rows = lint.figures(texts, scripts, texts | scripts)
        counted = {row["name"]: row["value"] for row in rows}
        self.assertEqual(counted["house.import_circles"], 0)
        self.assertEqual(counted["house.longest_function"], 40)
        self.assertEqual(counted["house.src_lines"], sum(t.count("\n") for t in texts.values()))
        self.assertIn("longest CUDA function: 20 lines, src/a.cu:2", said.getvalue())

    def test_what_exceeds_its_bound_is_found(self):
        report = unittest.mock.Mock()
        lint.check_budget([{"name": "house.import_circles", "value": n} for n in (1, 0)], report)
        self.assertEqual(report.call_args.args[2], "house.import_circles is 1; at most 0")


class Budget(unittest.TestCase):
    def test_doc_comments_without_a_subject(self):
        text = "/// Of all ranks.\nint a;\n/// Returns b.\n/// Of it.\nint b;\n// As said\n"
        module = 'def f():\n    """What it is."""\n\n\ndef g():\n    """Returns g."""\n'
        found = budget.subjectless({"src/a.hpp": text, "python/magi_attention/a.py": module})
        self.assertEqual(
            [place[:2] for place in found], [("src/a.hpp", 1), ("python/magi_attention/a.py", 1)]
        )

    def test_private_words(self):
        texts = {"src/a.hpp": "// an attend of the rank attends to left-over keys\n"}
        texts["docs/a.md"] = "its patience ends\n"
        texts["tools/a.py"] = "patience\n"
        found = [place[2] for place in budget.private_words(texts)]
        self.assertEqual(found, ["an attend", "left-over", "patience"])


if __name__ == "__main__":
    unittest.main()
