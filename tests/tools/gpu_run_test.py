# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import os
import pathlib
import re
import tempfile
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

    def test_random_masks_are_parts_of_their_own(self):
        for direction in ("forward", "backward"):
            name = direction.capitalize()
            left_out = f"--gtest_filter=-{name}MaskTest.*:{name}WideMaskTest.*"
            self.assertIn(left_out, run.command_of(direction, OUT, ""))

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

    def test_some_tests_of_a_part_may_be_asked_for(self):
        for some in ("backward=*Arrival*", "backward-racecheck=*", "python-tests=captured"):
            self.assertEqual(options(["--part", some]).part, [some])
        for wrong in ("nothing", "bench=*", "nvlink-memcheck=*", "python=captured"):
            with self.assertRaises(SystemExit):
                options(["--part", wrong])


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


class Running(unittest.TestCase):
    def run_parts(self, parts, command, **more):
        """Results of parts, all of which run a command of the shell."""
        with tempfile.TemporaryDirectory() as folder:
            given = options([f"--{name}={value}" for name, value in more.items()])
            shell = mock.patch.object(run, "command_of", lambda *_: ["sh", "-c", command])
            with shell, contextlib.redirect_stdout(io.StringIO()) as told:
                results = run.run_parts(parts, pathlib.Path(folder), 2, given)
        return results, told.getvalue()

    def test_a_failing_part_shows_the_end_of_its_log(self):
        results, told = self.run_parts(["tiles", "bench"], "echo some words; exit 3")
        self.assertEqual([result["exit_code"] for result in results], [3, 3])
        self.assertIn("some words", told)

    def test_tests_are_spread_over_the_gpus_and_figures_are_alone(self):
        command = 'test "$CUDA_VISIBLE_DEVICES" = 0 -o "$CUDA_VISIBLE_DEVICES" = 1'
        with mock.patch.dict(os.environ):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            results, _ = self.run_parts(["tiles", "bench", "waits"], command, together=2)
        codes = {result["part"]: result["exit_code"] for result in results}
        self.assertEqual(codes, {"tiles": 0, "waits": 0, "bench": 1})

    def test_no_part_begins_after_the_time_is_up(self):
        results, _ = self.run_parts(["tiles", "bench"], "true", minutes=0)
        self.assertEqual([result["exit_code"] for result in results], [None, None])

    def test_a_resumed_run_leaves_out_what_has_passed(self):
        with tempfile.TemporaryDirectory() as text:
            folder = pathlib.Path(text)
            (folder / "commit").write_text("abc\n", encoding="utf-8")
            outcomes = {"tiles": 0, "waits": 3}
            shell = mock.patch.object(
                run, "command_of", lambda part, *_: ["sh", "-c", f"exit {outcomes[part]}"]
            )
            names = mock.patch.object(run, "gpu_names", lambda: ["a GPU"])
            here = mock.patch.object(run, "HERE", folder)
            arguments = ["run", "--out", text, "--part", "tiles", "--part", "waits", "--resume"]
            argv = mock.patch("sys.argv", arguments)
            with shell, names, here, argv, contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(run.main(), 1)
                outcomes.update(tiles=4, waits=0)  # tiles is not run again
                self.assertEqual(run.main(), 0)
                (folder / "commit").write_text("abd\n", encoding="utf-8")
                self.assertEqual(run.main(), 1)


if __name__ == "__main__":
    unittest.main()
