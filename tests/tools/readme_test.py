# SPDX-License-Identifier: Apache-2.0
import re
import unittest

from load import TOOLS

ROOT = TOOLS.parent


class Readme(unittest.TestCase):
    def test_the_example_is_the_one_that_is_compiled_and_run(self):
        readme = (ROOT / "README.md").read_text()
        block = re.search(r"```cpp\n(.*?)\n```", readme, re.S).group(1)
        source = (ROOT / "examples" / "quickstart.cpp").read_text()
        self.assertEqual(block, source[source.index("int main()") :].rstrip())

    def test_the_two_commands_are_named_and_run_knows_them(self):
        readme = (ROOT / "README.md").read_text()
        script = (ROOT / "run").read_text()
        for verb in ("demo", "test"):
            self.assertIn(f"./run {verb}", readme)
            self.assertIn(f"  {verb}) command_{verb}", script)


if __name__ == "__main__":
    unittest.main()
