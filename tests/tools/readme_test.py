# SPDX-License-Identifier: Apache-2.0
import re
import unittest

from load import TOOLS

ROOT = TOOLS.parent


class Readme(unittest.TestCase):
    def test_the_example_over_ranks_is_that_of_the_quickstart(self):
        pages = [ROOT / "README.md", ROOT / "docs" / "quickstart" / "pytorch.md"]
        readme, quickstart = (
            re.findall(r"```python\n(.*?)```", page.read_text(), re.S) for page in pages
        )
        self.assertEqual(readme[-1], quickstart[0])

    def test_the_two_commands_are_named_and_run_knows_them(self):
        readme = (ROOT / "README.md").read_text()
        script = (ROOT / "run").read_text()
        for verb in ("demo", "test"):
            self.assertIn(f"./run {verb}", readme)
            self.assertIn(f"  {verb}) command_{verb}", script)


if __name__ == "__main__":
    unittest.main()
