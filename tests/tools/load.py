# SPDX-License-Identifier: Apache-2.0
"""Imports the scripts of tools/, which have no .py suffix."""

import importlib.machinery
import importlib.util
import pathlib
import sys

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"

sys.path.insert(0, str(TOOLS))


def tool(name):
    """The script of this name as a module."""
    loader = importlib.machinery.SourceFileLoader(f"magi_tool_{name}", str(TOOLS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
