# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import pathlib
import re
import unittest
from unittest import mock

from load import TOOLS, tool

run = tool("gpu_kit/run")
python_part = tool("gpu_kit/python_part")
ROOT = TOOLS.parent
OUT = pathlib.Path("out")


def options(text):
    arguments = mock.patch("sys.argv", ["run", "--out", "out", *text])
    with arguments, contextlib.redirect_stderr(io.StringIO()):
        return run.parse()


def parts_of_pending():
    with mock.patch.object(run, "HERE", TOOLS / "gpu_kit"):
        return run.pending(1) + run.pending(2)


class Parts(unittest.TestCase):
    def test_every_part_can_be_asked_for_and_has_a_command(self):
        for part in [*run.TESTS, *run.FAULT_RUNS, *run.SANITIZED_PROGRAMS, *run.BENCHES]:
            self.assertIn(part, run.PARTS)
        for part in run.PARTS:
            self.assertEqual(options(["--part", part]).part, [part])
            self.assertTrue(run.command_of(part, OUT, ""), part)
        self.assertEqual(len(run.PARTS), len(set(run.PARTS)))

    def test_every_part_is_told_of(self):
        for part in run.PARTS:
            base = part.removeprefix("backward-") if part.endswith("check") else part
            self.assertRegex(run.__doc__, rf"(?m)[ ,]{base}[ ,\n]")

    def test_programs_of_parts_are_in_the_bundle(self):
        cmake = (ROOT / "bench/gpu/CMakeLists.txt").read_text(encoding="utf-8")
        for part in run.PARTS:
            for word in map(str, run.command_of(part, OUT, "")):
                path = pathlib.Path(word)
                if path.parent == run.HERE and path.suffix != ".so":
                    self.assertRegex(cmake, rf"[ /]{path.name}[\s)]", f"{part}: {path.name}")

    def test_scripts_of_python_parts_are_in_the_bundle(self):
        cmake = (ROOT / "bench/gpu/CMakeLists.txt").read_text(encoding="utf-8")
        for part in run.PYTHON_PARTS:
            commands = list(python_part.commands(part, OUT, ""))
            self.assertTrue(commands, part)
            for word in scripts_of(commands):
                name = pathlib.Path(word).relative_to(python_part.HERE)
                copied = name.name if str(name.parent) == "." else f"${{kit}}/{name.parent}"
                self.assertIn(copied, cmake)


def scripts_of(commands):
    """Scripts of the bundle that the commands name."""
    here = str(python_part.HERE)
    return [word for command in commands for word in command if word.startswith(here)]


class Pending(unittest.TestCase):
    def test_pending_tests_are_there(self):
        folders = [ROOT / "tests" / name for name in ("kernels", "python")]
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        names = " ".join(path.stem for path in files)
        sources = " ".join(
            path.read_text(encoding="utf-8") for path in files if path.suffix in (".cpp", ".py")
        )
        for name in parts_of_pending():
            for word in re.findall(r"[A-Za-z]\w{3,}", name.partition("=")[2]):
                self.assertTrue(word in sources or word in names, f"{name}: {word}")


if __name__ == "__main__":
    unittest.main()
