# SPDX-License-Identifier: Apache-2.0
"""Every public name of the original imports from its module, with its signature and values: the
names, order, kinds and defaults of parameters, the order and defaults of fields. What differs is in
DEVIATIONS, with the reason.
"""

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

NO_DEFAULT = inspect.Parameter.empty


def rows_of(file: str) -> list[list[str]]:
    """The rows of a list in data."""
    lines = (Path(__file__).parent / "data" / file).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def names_of(rows: list[list[str]]) -> Iterator[tuple[str, str, str, str]]:
    """Module, name, kind and text of every name; api_names.tsv tells how a row has several."""
    for row in rows:
        module, names, kind, text = (*row, "")[:4]
        owner = ""
        for item in names.split():
            name, _, value = item.partition("=")
            name = owner + name if name.startswith(".") else name
            owner = name.partition(".")[0]
            yield module, name, kind, value or text


ROWS = list(names_of(rows_of("api_names.tsv")))

_RENAMED = "takes the names of older releases, with a DeprecationWarning"
_NEWER = "an argument of newer releases"
_PADDING = "padding is the plan's, so the argument may be left out"
_GROUP = "required all the same: pad_size before it got a default, and cp_group= is its older name"
_ONLY_VALUE = "True is the only value there is"
_POSITIONS = "rows placed for another mask have its position ids"
_VALUES = "heads of v may be narrower"
_PAD_VALUE = "dispatch hands its pad_value on"

# (name, parameter or field): why it is not in the original, or has another default there.
DEVIATIONS = {
    ("DispatchConfig", "alg"): "the plan's own placement is the default",
    ("DispatchConfig", "layout"): "rows in order are this package's own",
    ("DispatchConfig", "max_runs"): "likewise, for recurrent layers",
    ("DistAttnConfig", "work"): "what travels, for one plan and not for a process",
    ("DistAttnConfig", "head_shares"): "shares of heads, where ranks share them out",
    ("DistAttnConfig", "max_exchange_bytes"): "a bound of memory, which the original has not",
    ("DistAttnConfig", "overlap_config"): "the cost model chooses the stages by default",
    ("OverlapConfig", "_no_overlap"): "FSDP makes keys of a call anew, field by field",
    ("DistAttnRuntimeKey", "placed_by"): "keys of one mask on different placements differ",
    ("DistAttnRuntimeKey", "cost_file"): "plans depend on the constants of the cost model",
    ("DistAttnRuntimeMgr.__init__", "is_same_source"): _ONLY_VALUE,
    ("DistAttnRuntimeMgr.__init__", "is_q_permutable"): _ONLY_VALUE,
    ("DistAttnRuntimeMgr.__init__", "is_k_permutable"): _ONLY_VALUE,
    ("DistAttnRuntimeMgr.__init__", "num_positions"): _POSITIONS,
    ("DistAttnRuntimeMgr.dispatch_qo", "pad_value"): _PAD_VALUE,
    ("DistAttnRuntimeMgr.dispatch_kv", "pad_value"): _PAD_VALUE,
    ("_DispatchFunc.forward", "pad_value"): _PAD_VALUE,
    ("init_dist_attn_runtime_key", "placed_by"): "the field of the key",
    ("init_dist_attn_runtime_key", "head_dim_v"): _VALUES,
    ("DistAttnRuntimeKey", "head_dim_v"): _VALUES,
    ("make_flex_key_for_new_mask_after_dispatch", "head_dim_v"): _VALUES,
    ("AttnForwardMeta", "max_logits"): "None unless asked for",
    ("compute_pad_size", "chunk_size"): "older releases took head_dim in its place",
    ("compute_pad_size", "head_dim"): _RENAMED,
    ("flex_flash_attn_func", "**retired"): _RENAMED,
    ("flex_flash_attn_func", "swap_bwd_qk_loop"): "newer releases have a third value, None",
    ("flex_flash_attn_func", "index_sparse_indices"): _NEWER,
    ("flex_flash_attn_func", "index_sparse"): _NEWER,
    ("flex_flash_attn_func", "sparse_k_block_size"): _NEWER,
    ("flex_flash_attn_func", "block_sparse"): _NEWER,
    ("flex_flash_attn_func", "range_merge"): _NEWER,
    ("flex_flash_attn_func", "disable_bwd_dq_atomic_reduction"): _NEWER,
    ("magi_attn_flex_key", "pad_size"): _PADDING,
    ("magi_attn_flex_key", "cp_group_or_mesh"): _GROUP,
    ("magi_attn_varlen_key", "pad_size"): _PADDING,
    ("magi_attn_varlen_key", "cp_group_or_mesh"): _GROUP,
}
for _kind in ("flex", "varlen"):
    DEVIATIONS[f"magi_attn_{_kind}_key", "head_dim_v"] = _VALUES
    for _added in ("pad_size", "cp_group_or_mesh", "head_dim_v"):
        _reason = DEVIATIONS[f"magi_attn_{_kind}_key", _added]
        DEVIATIONS[f"magi_attn_{_kind}_dispatch", _added] = _reason


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


def wanted_signature(module: str, text: str) -> dict[str, tuple[str, object]]:
    """From name to (kind, default) in order, of a signature as written in the list."""
    arguments = ast.parse(f"def f{text}: pass").body[0].args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    wanted = {}
    for kind, names, values in (
        ("positional", arguments.args, defaults),
        ("star", [arguments.vararg] if arguments.vararg else [], [None]),
        ("keyword", arguments.kwonlyargs, arguments.kw_defaults),
        ("star", [arguments.kwarg] if arguments.kwarg else [], [None]),
    ):
        for name, value in zip(names, values):
            default = NO_DEFAULT if value is None else value_of(module, ast.unparse(value))
            wanted[name.arg] = (kind, default)
    return wanted


def found_signature(function) -> dict[str, tuple[str, object]]:
    kinds = {
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_POSITIONAL: "star",
        inspect.Parameter.VAR_KEYWORD: "star",
    }
    parameters = inspect.signature(function).parameters.values()
    return {p.name: (kinds[p.kind], p.default) for p in parameters}


def check_signature(module: str, name: str, function, text: str) -> None:
    wanted, found = wanted_signature(module, text), found_signature(function)
    for parameter in [p for p in found if p not in wanted]:
        kind, default = found.pop(parameter)
        stars = "**" if kind == "star" else ""
        assert (name, stars + parameter) in DEVIATIONS, f"{name}: {parameter} is added"
        assert kind == "star" or default is not NO_DEFAULT, f"{name}: {parameter} is required"
    for kind in ("positional", "keyword", "star"):  # the order of keywords is no matter
        names = [[p for p in ps if ps[p][0] == kind] for ps in (found, wanted)]
        same = sorted(names[0]) == sorted(names[1]) if kind == "keyword" else names[0] == names[1]
        assert same, f"{name}: order"
    for parameter, (kind, default) in wanted.items():
        if (name, parameter) not in DEVIATIONS:
            assert found[parameter] == (kind, default), f"{name}: {parameter}"
        else:
            assert found[parameter][0] == kind


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
    if (owner, field_name) in DEVIATIONS:
        return
    if default.startswith("field("):
        for keyword in ast.parse(default).body[0].value.keywords:
            assert getattr(field, keyword.arg) == ast.literal_eval(keyword.value), name
        return
    assert default_of(field) == listed_default(module, default), name


def default_of(field: dataclasses.Field):
    is_made = field.default_factory is not dataclasses.MISSING
    return field.default_factory() if is_made else field.default


def listed_default(module: str, text: str):
    return value_of(module, text) if text else dataclasses.MISSING


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


FIELDS = [(module, *name.split(".")) for module, name, kind, _ in ROWS if kind == "field"]
DATACLASSES = sorted({(module, owner) for module, owner, _ in FIELDS})


@pytest.mark.parametrize("module, owner", DATACLASSES)
def test_order_of_fields(module, owner):
    """Fields may be given by position, so their order counts as the order of parameters does."""
    cls = getattr(importlib.import_module(module), owner)
    if dataclasses.is_dataclass(cls):
        listed = [name for m, cls_name, name in FIELDS if (m, cls_name) == (module, owner)]
        found = [f.name for f in dataclasses.fields(cls)]
        assert found[: len(listed)] == listed
        assert all((owner, added) in DEVIATIONS for added in found[len(listed) :])


def test_every_deviation_is_one():
    """No entry outlives the difference it explains."""
    rows = {name: (module, kind, text) for module, name, kind, text in ROWS if kind != "export"}
    for name, parameter in DEVIATIONS:
        module, kind, text = rows[name]
        if kind == "class":
            field = {f.name: f for f in dataclasses.fields(find(module, name))}[parameter]
            listed = rows.get(f"{name}.{parameter}")
            differs = listed is None or default_of(field) != listed_default(module, listed[2])
        else:
            function = find(module, name)
            found = found_signature(getattr(function, "__func__", function))
            wanted = wanted_signature(module, text)
            differs = found[parameter.lstrip("*")] != wanted.get(parameter.lstrip("*"))
        assert differs, f"{name}: {parameter}"


def test_list_is_whole():
    assert len(ROWS) > 350 and len({(r[0], r[1], r[2]) for r in ROWS}) == len(ROWS)
