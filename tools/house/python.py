# SPDX-License-Identifier: Apache-2.0
"""Rules of Python sources: lengths, layers of the package, format and ruff's rules."""

import ast
import json
import pathlib
import shutil
import subprocess

from house.text import check_text

FUNCTION_LINES = 60  # docstrings not counted
PACKAGE = "magi_attention"
SOURCES = "python"  # the folder that holds the package

# Parts of the package, lowest first. A part may import from the rows above its own.
LEVELS = (
    ("_deprecation",),
    ("errors", "_environment", "_group_holders"),
    ("_native",),
    ("common",),
    ("backends", "env"),
    ("comm",),
    ("plan_memory", "rows"),
    ("config", "functional", "masks", "tracing", "training_memory"),
    ("_attention", "plan"),
    ("batch", "training"),
    ("compat", "recurrent"),
    ("_doctor", "_memory", "api"),
    ("integrations", PACKAGE),
    ("__main__",),
)
LEVEL_OF = {part: level for level, parts in enumerate(LEVELS) for part in parts}


def is_python(path):
    """Whether a file is Python, by its name or its first line."""
    if path.suffix in (".py", ".pyi"):
        return True
    if path.suffix:
        return False
    with path.open("rb") as file:
        return file.readline().rstrip() == b"#!/usr/bin/env python3"


def functions(text):
    """(start line, lines without the docstring, name) of every function."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            found.append((node.lineno, lines, node.name))
    return found


def check_lengths(path, text, report):
    """Caps on the file, its lines and its functions."""
    check_text(path, text, report)
    for start, lines, name in functions(text):
        if lines > FUNCTION_LINES:
            report(path, start, f"{name} has {lines} lines; at most {FUNCTION_LINES}")


def module_of(name):
    """The module of a file of the package by its path from the root; None for other files, and for
    stubs, which stand for modules elsewhere.
    """
    parts = pathlib.PurePosixPath(name).with_suffix("").parts
    if parts[:2] != (SOURCES, PACKAGE) or name.endswith(".pyi"):
        return None
    return ".".join(parts[1:-1] if parts[-1] == "__init__" else parts[1:])


def imports(text):
    """(line, module or name in one, module) of every import, those inside functions and under
    TYPE_CHECKING too.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}", node.module


def import_graph(texts):
    """From every module of the package to the modules it imports; texts: by path from the root."""
    modules = {module_of(name): text for name, text in texts.items() if module_of(name)}
    graph = {module: set() for module in modules}
    for module, text in modules.items():
        for _, name, home in imports(text):
            target = name if name in modules else home
            if target in modules:
                graph[module].add(target)
    return graph


def part_of(module):
    """The part of the package that a module belongs to."""
    return ([*module.split("."), PACKAGE])[1] if "." in module else PACKAGE


def check_layers(path, text, report):
    """Imports of lower parts of the package only; path is relative to the root."""
    module = module_of(path.as_posix())
    if module is None:
        return
    part = part_of(module)
    if part not in LEVEL_OF:
        report(path, 1, f"{part} has no level in tools/house/python.py")
        return
    for line, name, home in imports(text):
        if home.split(".")[0] != PACKAGE:
            continue
        target = part_of(name)
        if target not in LEVEL_OF:  # a name of the package itself
            target = PACKAGE
        if target != part and LEVEL_OF[target] >= LEVEL_OF[part]:
            report(path, line, f"{part} may not import {target}")


def find_ruff(root):
    """The ruff that ./run lint installs, or the one on the path; None without either."""
    own = root / "build" / "lint" / "venv" / "bin" / "ruff"
    return str(own) if own.exists() else shutil.which("ruff")


def check_ruff(root, files, report):
    """Format and rules, as pyproject.toml sets them."""
    ruff = find_ruff(root)
    if ruff is None:
        report(root / "pyproject.toml", 1, "ruff is missing; ./run lint installs it")
        return
    settings = ["--config", str(root / "pyproject.toml"), "--output-format", "json"]
    for command in (["check"], ["format", "--check"]):
        done = run([ruff, *command, *settings, *map(str, files)])
        if done.returncode > 1 or not done.stdout.startswith("["):
            report(root / "pyproject.toml", 1, f"ruff: {done.stderr.strip()}")
            return
        for found in json.loads(done.stdout):
            place = pathlib.Path(found["filename"])
            report(place, found["location"]["row"], f"{found['code']}: {found['message']}")


def run(command):
    return subprocess.run(command, capture_output=True, text=True, check=False)
