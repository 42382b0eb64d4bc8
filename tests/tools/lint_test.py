# SPDX-License-Identifier: Apache-2.0
import pathlib
import unittest

from load import tool

lint = tool("lint")


def findings(check, name, text):
    found = []
    check(lint.ROOT / name, text, lambda path, line, message: found.append((line, message)))
    return found


def function_of(lines, head="int f(int a)"):
    return f"namespace magi {{\n{head} {{\n" + "  a += 1;\n" * (lines - 2) + "}\n}\n"


class Lengths(unittest.TestCase):
    def test_a_function_at_the_cap_passes_and_one_line_more_fails(self):
        self.assertEqual(findings(lint.check_lengths, "src/mask/a.cpp", function_of(50)), [])
        self.assertEqual(
            findings(lint.check_lengths, "src/mask/a.cpp", function_of(51)),
            [(2, "function of 51 lines; at most 50")],
        )

    def test_kernels_and_device_functions_have_their_own_caps(self):
        kernel = function_of(61, "__global__ void __launch_bounds__(384, 1) f(Args a)")
        self.assertEqual(len(findings(lint.check_lengths, "src/kernels/a.cu", kernel)), 1)
        device = function_of(70, "__device__ void f(int a)")
        self.assertEqual(findings(lint.check_lengths, "src/kernels/a.cu", device), [])

    def test_methods_are_functions_and_classes_are_not(self):
        body = "  void g() {\n" + "    x();\n" * 60 + "  }\n"
        text = "struct S : Base {\n" + body + "};\n"
        self.assertEqual(
            findings(lint.check_lengths, "src/mask/a.hpp", text),
            [(2, "function of 62 lines; at most 50")],
        )

    def test_braces_in_strings_comments_and_macros_do_not_count(self):
        text = "#define OPEN {\nint f() {\n  // {\n  return g(\"{\") + '{' + 1'000;\n}\nint h() {\n  return 1;\n}\n"
        self.assertEqual(
            [(start, length) for start, length, _ in lint.functions(text)], [(2, 4), (6, 3)]
        )

    def test_long_files_and_lines(self):
        self.assertEqual(len(findings(lint.check_lengths, "src/a/a.cpp", "int a;\n" * 601)), 1)
        self.assertEqual(len(findings(lint.check_lengths, "src/a/a.cpp", "/" * 101)), 1)


class Layers(unittest.TestCase):
    def test_includes_go_down_only(self):
        self.assertEqual(
            findings(lint.check_layers, "src/plan/a.cpp", '#include "mask/band.hpp"\n'), []
        )
        self.assertEqual(
            len(findings(lint.check_layers, "src/mask/a.cpp", '#include "plan/exchange.hpp"\n')), 1
        )
        self.assertEqual(
            len(findings(lint.check_layers, "src/plan/a.cpp", "#include <cuda_runtime.h>\n")), 1
        )

    def test_asm_has_one_home(self):
        text = 'void f() { asm volatile("nop;"); }\n'
        self.assertEqual(findings(lint.check_layers, "src/cuda/ptx/a.cuh", text), [])
        self.assertEqual(len(findings(lint.check_layers, "src/kernels/tile/a.cuh", text)), 1)

    def test_json_stays_in_sources(self):
        text = "#include <nlohmann/json.hpp>\n"
        self.assertEqual(findings(lint.check_layers, "src/plan/a.cpp", text), [])
        self.assertEqual(len(findings(lint.check_layers, "src/plan/a.hpp", text)), 1)


class Words(unittest.TestCase):
    def test_unfinished_work_is_found(self):
        self.assertEqual(len(findings(lint.check_words, "src/a/a.cpp", "// TO" + "DO: more\n")), 1)

    def test_spdx(self):
        self.assertEqual(len(findings(lint.check_spdx, "src/a/a.cpp", "int a;\n")), 1)


if __name__ == "__main__":
    unittest.main()
