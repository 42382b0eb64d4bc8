# SPDX-License-Identifier: Apache-2.0
"""Every public name of the original imports from its module, with its signature and values.

A signature may take more than the original's: further arguments with defaults, and defaults where
the original has none.
"""

import ast
import dataclasses
import importlib
import inspect
from enum import Enum
from pathlib import Path

import pytest

LINES = (Path(__file__).parent / "data" / "api_names.tsv").read_text(encoding="utf-8").splitlines()
ROWS = [(line.split("\t") + [""])[:4] for line in LINES if not line.startswith("#")]

# Defaults that differ on purpose; docs/python.md says why.
OTHER_DEFAULTS = {"DispatchConfig.alg"}


def find(module: str, name: str):
    """The object, taken from its class's own dictionary where it is a member."""
    found = importlib.import_module(module)
    *owners, last = name.split(".")
    for owner in owners:
        found = getattr(found, owner)
    if not owners:
        return getattr(found, last)
    for base in found.__mro__:
        if last in vars(base):
            return vars(base)[last]
    raise AttributeError(f"{module} {name} is missing")


def value_of(module: str, text: str):
    """A default as written in the list: a literal, or an expression over the module's names."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        import torch

        names = {"torch": torch, "int": int, "field": dataclasses.field}
        names |= vars(importlib.import_module("magi_attention.common.enum"))
        names |= vars(importlib.import_module("magi_attention.config"))
        return eval(text, names | vars(importlib.import_module(module)))


def check_signature(module: str, name: str, function, text: str) -> None:
    wanted = ast.parse(f"def f{text}: pass").body[0].args
    found = inspect.signature(function).parameters
    positional = [p for p in found.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [argument.arg for argument in wanted.args]
    assert [p.name for p in positional[: len(names)]] == names, name
    defaults = dict(zip(reversed(names), reversed(wanted.defaults)))
    keyword_only = [argument.arg for argument in wanted.kwonlyargs]
    defaults |= {n: d for n, d in zip(keyword_only, wanted.kw_defaults) if d is not None}
    for argument in keyword_only:
        assert found[argument].kind in (inspect.Parameter.KEYWORD_ONLY, positional[0].kind), name
    for argument, default in defaults.items():
        if argument != "self":
            expected = value_of(module, ast.unparse(default))
            assert found[argument].default == expected, f"{name}: default of {argument}"
    if wanted.vararg:
        assert any(p.kind is p.VAR_POSITIONAL for p in found.values()), name
    for parameter in found.values():
        is_added = parameter.name not in names + keyword_only
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_added and not is_open:
            assert parameter.default is not parameter.empty, f"{name}: {parameter.name} is required"


def check_class(found, bases: str) -> None:
    assert inspect.isclass(found)
    names = {base.__name__ for base in found.__mro__}
    for base in filter(None, bases.replace("nn.Module", "Module").split(", ")):
        assert base.split(".")[-1].replace("autograd.Function", "Function") in names


def check_field(module: str, name: str, default: str) -> None:
    owner, field_name = name.split(".")
    cls = getattr(importlib.import_module(module), owner)
    if not dataclasses.is_dataclass(cls):
        assert getattr(cls, field_name) is not None
        return
    field = {f.name: f for f in dataclasses.fields(cls)}[field_name]
    if not default or name in OTHER_DEFAULTS:
        return
    if default.startswith("field("):
        for keyword in ast.parse(default).body[0].value.keywords:
            assert getattr(field, keyword.arg) == ast.literal_eval(keyword.value), name
        return
    is_made = field.default_factory is not dataclasses.MISSING
    made = field.default_factory() if is_made else field.default
    assert made == value_of(module, default), name


def id_of(row) -> str:
    return f"{row[0].removeprefix('magi_attention.')}:{row[1]}"


@pytest.mark.parametrize("module, name, kind, text", ROWS, ids=map(id_of, ROWS))
def test_name(module, name, kind, text):
    if kind == "field":
        check_field(module, name, text)
        return
    found = find(module, name)
    if kind == "export":
        assert found is not None
    elif kind == "class":
        check_class(found, text)
    elif kind == "value":
        wanted = value_of(module, text)
        assert (found.value if isinstance(found, Enum) else found) == wanted
    elif kind == "property":
        assert isinstance(found, property)
    elif kind == "setter":
        assert found.fset is not None
    elif kind == "staticmethod":
        assert isinstance(found, staticmethod)
        check_signature(module, name, found.__func__, text)
    elif kind == "classmethod":
        assert isinstance(found, classmethod)
        check_signature(module, name, found.__func__, text)
    else:
        check_signature(module, name, found, text)


def test_list_is_whole():
    assert len(ROWS) > 500 and len({(r[0], r[1], r[2]) for r in ROWS}) == len(ROWS)
