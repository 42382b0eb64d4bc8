# SPDX-License-Identifier: Apache-2.0
"""What the documents show runs, and their tables are whole."""

import dataclasses
import inspect
import os
import re
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch

from magi_attention import api
from magi_attention.config import DispatchConfig, OverlapConfig

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python" / "magi_attention"


def blocks(name: str) -> list[str]:
    """The Python code that a document shows."""
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("name", ["docs/python.md", "docs/index.md"])
def test_first_example(name, capsys):
    shown = {}
    exec(blocks(name)[0], shown)
    assert shown["out"].shape == (1000, 8, 64)
    assert shown.get("lse", torch.zeros(1000, 8)).shape == (1000, 8)
    assert all(shown[leaf].grad.isfinite().all() for leaf in "qkv")


@pytest.mark.parametrize("index", [0, 1, 2])
def test_examples_of_adapters(index):
    """Each runs as it stands, on one process; test_megatron.py has the one of Megatron."""
    if index == 0:
        pytest.importorskip("transformers", minversion="5")
    exec(blocks("docs/integrations.md")[index], {})


def test_example_of_sparse_attention():
    shown = {}
    exec(blocks("docs/sparse.md")[0], shown)
    assert shown["out"].shape == (512, 8, 64) and shown["k"].grad.isfinite().all()


def test_example_of_masks(capsys):
    exec(blocks("docs/masks.md")[0], {})
    assert "row 6 sees keys [0, 4), [6, 7), which cu_seqlens cannot tell" in capsys.readouterr().out


def test_example_of_backends(capsys):
    with mock.patch.dict(os.environ):
        exec(blocks("docs/backends.md")[0], {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 6 and shown[0].startswith("ffa|cutedsl") and ": cpu" in shown[0]


def test_example_of_memory(capsys):
    exec(blocks("docs/training.md")[-1], {})
    assert "most is held in " in capsys.readouterr().out


@pytest.mark.parametrize("index", [0, 1])
def test_examples_of_training(index):
    """test_megatron.py has the one of Megatron."""
    if index == 1:
        pytest.importorskip("transformers", minversion="5")
    shown = {}
    exec(blocks("docs/training.md")[index], shown)
    if index == 1:
        assert shown["model"].is_gradient_checkpointing
        ids = torch.arange(30)[None]
        shown["model"](input_ids=ids, labels=ids).loss.backward()
    weights = shown["model" if index else "layers"].parameters()
    assert all(weight.grad.isfinite().all() for weight in weights)


def run_shown(group) -> None:
    """The examples over ranks, one after the other, as if torchrun had started this process."""
    _, over_ranks, as_a_plan, *_, traced = blocks("docs/python.md")
    shown = {}
    here = os.getcwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("torch.distributed.init_process_group") as start,
    ):
        os.chdir(folder)
        try:
            exec(over_ranks, shown)
            exec(as_a_plan, shown)
            assert Path("mask.svg").read_text(encoding="utf-8").startswith("<svg")
            exec(traced, shown)
            assert group.rank() or "traceEvents" in Path("step.json").read_text(encoding="utf-8")
        finally:
            os.chdir(here)
    start.assert_called_once_with("gloo")
    assert shown["whole"].shape == (1000, 8, 64)
    assert torch.equal(shown["x"][shown["ids"]][:200], shown["local"][:200])
    bound = shown["bound"]
    assert bound.plan == shown["plan"] and bound.local_rows == shown["local"].shape[0]
    out, _ = bound.calc_attn(shown["q"], shown["k"], shown["v"])
    assert torch.equal(out, shown["out"])


def test_examples_over_ranks(ranks):
    ranks.run(4, run_shown)


def run_transformers(group) -> None:
    """The model of the documents: losses of ranks add up to that of one process."""
    (code,) = (code for code in blocks("docs/python.md") if "LlamaForCausalLM" in code)
    shown = {}
    with mock.patch("torch.distributed.init_process_group"):
        exec(code, shown)
    model = shown["model"]
    model.set_attn_implementation("sdpa")
    alone = model(
        **{name: shown[name] for name in ("input_ids", "labels", "position_ids")}, use_cache=False
    ).loss
    assert abs(shown["loss"] - alone) < 1e-5


def run_hybrid(group) -> None:
    shown = {}
    with mock.patch("torch.distributed.init_process_group"):
        for block in blocks("docs/hybrid.md"):
            exec(block, shown)
    assert shown["out"].shape == (shown["bound"].local_rows, 4, 16)
    assert shown["x"].grad.isfinite().all()


def test_example_of_hybrid_models(ranks):
    ranks.run(4, run_hybrid)


def test_transformers(ranks):
    pytest.importorskip("transformers", minversion="5")
    ranks.run(4, run_transformers)


def test_every_variable_is_documented():
    """Variables that the package reads, by PREFIX + "NAME" or in full."""
    read = set()
    for path in (SOURCES / "env").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        read |= set(re.findall(r'PREFIX \+ "([A-Z0-9_]+)"', text))
        read |= set(re.findall(r'_sm_margin\("([A-Z0-9_]+)"', text))
        read |= set(re.findall(r'read_\w+\("([A-Z0-9_]+)"', text))
    told = set(re.findall(r"`([A-Z0-9_]+)`", (ROOT / "docs/environment.md").read_text()))
    assert len(read) > 25 and read <= told


def test_every_option_is_documented():
    """Parameters of flex_flash_attn_func and fields of configurations, each with its effect."""
    told = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
    names = [p for p in inspect.signature(api.flex_flash_attn_func).parameters.values()
             if p.kind is p.KEYWORD_ONLY]  # fmt: skip
    names += [field for kind in (DispatchConfig, OverlapConfig)
              for field in dataclasses.fields(kind)
              if field.init and not field.name.startswith("_")]  # fmt: skip
    missing = [option.name for option in names if f"`{option.name}`" not in told
               and f"`{option.name}=" not in told]  # fmt: skip
    assert not missing


def test_example_of_moving_queries(capsys):
    exec(blocks("docs/moving_queries.md")[0], {})
    balances = [float(word) for word in capsys.readouterr().out.split()]
    assert len(balances) == 2 and max(balances) < 1.01


def test_links_lead_somewhere():
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "python/README.md")]
    documents += (ROOT / "docs").rglob("*.md")
    documents += (ROOT / "examples").rglob("*.md")
    broken = []
    for document in documents:
        links = re.findall(r"\]\(([\w./-]*\w)(?:#([^)]*))?\)", document.read_text("utf-8"))
        for target, anchor in links:
            path = document.parent / target
            has_anchors = bool(anchor) and path.suffix == ".md"
            if not path.exists() or (has_anchors and anchor not in _anchors(path)):
                broken.append(f"{document.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken


def _anchors(page: Path) -> set[str]:
    """Those that headings of a page get."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text("utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in words}


def test_index_leads_to_every_page():
    """Pages of the API are listed by their own index; pictures have a page for who makes them."""
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    listed = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", index)}
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    of_api = {page for page in pages if page.startswith("api/") and page != "api/README.md"}
    assert pages - of_api - listed == {"index.md", "pictures/README.md"}


def test_every_public_header_is_linked():
    told = (ROOT / "docs/headers.md").read_text(encoding="utf-8")
    headers = (ROOT / "include/magi").glob("*.h*")
    assert not [path.name for path in headers if f"include/magi/{path.name})" not in told]
