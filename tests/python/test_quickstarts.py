# SPDX-License-Identifier: Apache-2.0
"""Each quickstart runs as it stands, on ranks in place of those that torchrun would start. That of
C++ is examples/quickstart.cpp, which is built and run beside the tests of the C interface.
"""

import contextlib
import functools
import json
import os
import re
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from test_docs import ROOT, blocks


def run(code: str, **names) -> dict:
    """The names that a program leaves; the process group is there already, and stays."""
    group = "torch.distributed.{}_process_group"
    with mock.patch(group.format("init")), mock.patch(group.format("destroy")):
        exec(code, names)
    return names


def page(name: str) -> str:
    return blocks(f"docs/quickstart/{name}.md")[0]


def of_each(q, k, v):
    """Causal attention of torch to each of two packed documents, [rows, heads, dim]."""
    attend = functools.partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    parts = zip(*(x.split((400, 600)) for x in (q, k, v)))
    return torch.cat([attend(*(x.transpose(0, 1) for x in p)).transpose(0, 1) for p in parts])


def test_flash_attn():
    """Both programs give what torch's attention gives."""
    of_varlen, of_sdpa = blocks("docs/quickstart/flash_attn.md")
    shown = run(of_varlen)
    leaves = [shown[name] for name in "qkv"]
    expected = of_each(*leaves)
    assert torch.allclose(shown["out"], expected, atol=1e-5)
    for leaf, wanted in zip(leaves, torch.autograd.grad(expected.sum(), leaves)):
        assert torch.allclose(leaf.grad, wanted, atol=1e-4)
    shown = run(of_sdpa, **shown)
    tensors = [shown[name] for name in "qkv"]
    expected = F.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
    assert torch.allclose(shown["out"], expected, atol=1e-5)


def run_pytorch(group, code: str):
    shown = run(code)
    return shown["whole"].detach(), shown["weights"].grad, str(shown["plan"])


def test_pytorch(ranks):
    """Out and gradient are those of one process, and the page shows the plan that is printed."""
    whole, gradient, plan = ranks.run(4, run_pytorch, page("pytorch"))[0]
    text = (ROOT / "docs/quickstart/pytorch.md").read_text(encoding="utf-8")
    assert f"```text\n{plan.rstrip()}\n```" in text
    alone, wanted, _ = ranks.run(1, run_pytorch, alone_of(page("pytorch")))[0]
    assert torch.allclose(whole, alone, atol=1e-5)
    assert torch.allclose(gradient, wanted, atol=1e-4)


def run_fsdp(group, code: str) -> torch.Tensor:
    return run(code)["model"].weight.grad.full_tensor()


def test_fsdp(ranks):
    """The gradient is that of one process with both sequences."""
    _, code = blocks("docs/quickstart/pytorch.md")
    found = ranks.run(4, run_fsdp, code)[0]
    torch.manual_seed(0)
    weight = torch.nn.Linear(512, 768, bias=False).weight
    for replica in range(2):
        x = torch.randn(1000, 512, generator=torch.Generator().manual_seed(replica))
        parts = (x @ weight.T).split((512, 128, 128), dim=1)
        out = of_each(*(part.unflatten(1, (-1, 64)) for part in parts))
        (out.square().sum() / 2000).backward()
    assert (found - weight.grad).abs().max() < 1e-5 * weight.grad.abs().max()


def alone_of(code: str) -> str:
    """The program on one rank of a world of four."""
    code = code.replace("dist.get_world_size()", "1").replace("bind(dist.group.WORLD)", "bind()")
    return code.replace("dist.all_reduce(weights.grad)", "pass")


def run_transformers(group, code: str):
    shown = run(code)
    return shown["losses"], next(shown["model"].parameters()).detach()


def test_transformers(ranks):
    """The loss falls, and all ranks have the same weights."""
    pytest.importorskip("transformers", minversion="5")
    (losses, weights), *others = ranks.run(4, run_transformers, page("transformers"))
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.1
    assert all(torch.equal(weights, other) for _, other in others)


def run_sft(world, code: str) -> dict:
    """What the program for 8 GPUs says in the end, on CPUs and of a small model."""
    import test_transformers as models
    import trainer_cases as cases

    named = mock.patch("transformers.AutoModelForCausalLM.from_pretrained")
    with named as made, contextlib.ExitStack() as stack:
        made.return_value = models.model("llama", "sdpa")
        if world is not None:
            stack.enter_context(cases.as_torchrun())
            stack.enter_context(cases.sharded_on_cpus())
        options = 'use_cpu=True, report_to=[], save_strategy="no"'
        return run(code.replace("bf16=True", options))["trainer"].state.log_history[-1]


def test_sft(ranks, tmp_path):
    """Two replicas of two ranks have the loss and the metric of one process."""
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    import trainer_cases as cases

    file = tmp_path / "packed.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for sample in cases.samples(15):
            ids = sample["input_ids"].tolist()
            lines.write(json.dumps({"input_ids": ids, "seq_lengths": [2, len(ids) - 2]}) + "\n")
    _, code = blocks("docs/quickstart/transformers.md")
    code = code.replace("packed.jsonl", str(file)).replace('"out"', repr(str(tmp_path)))
    found = ranks.run(4, run_sft, code.replace("cp_size=4", "cp_size=2"))[0]
    code = re.sub(" *fsdp.*\n", "", code).replace("cp_size=4", "cp_size=1")
    wanted = run_sft(None, code.replace("train_batch_size=1", "train_batch_size=2"))
    for name in ("eval_loss", "eval_accuracy"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4)


def run_megatron(group, code: str) -> float:
    """On the CPU: Megatron asks for the current GPU and its random numbers."""
    import test_megatron as cases

    if cases.parallel_state.model_parallel_is_initialized():
        cases.parallel_state.destroy_model_parallel()
    with (
        cases.on_cpu(),
        mock.patch("torch.cuda.set_device"),
        mock.patch("megatron.core.tensor_parallel.model_parallel_cuda_manual_seed"),
        mock.patch.dict(os.environ, LOCAL_RANK="0"),
    ):
        torch.manual_seed(0)
        shown = run(code.replace('"cuda"', '"cpu"'))
    cases.parallel_state.destroy_model_parallel()
    assert all(weight.grad is not None for weight in shown["model"].parameters())
    dist.all_reduce(loss := shown["loss"].detach())
    return loss.item()


def test_megatron(ranks):
    """A model that knows nothing yet: the loss is about that of 128 equal chances."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    for loss in ranks.run(4, run_megatron, page("megatron")):
        assert 4 < loss < 7


def run_automodel(group, code: str) -> float:
    import test_automodel as cases

    with cases.name_of_automodel():
        shown = run(code)
    dist.all_reduce(loss := shown["loss"].detach())
    return loss.item() / 383


def test_automodel(ranks):
    for package in ("transformers", "einops", "nemo_automodel"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    for loss in ranks.run(4, run_automodel, page("automodel")):
        assert 4 < loss < 5.5


def test_cpp():
    text = (ROOT / "docs/quickstart/cpp.md").read_text(encoding="utf-8")
    assert (ROOT / "examples/quickstart.cpp").read_text(encoding="utf-8") in text


def test_tuning(capsys):
    """Prints what the page says it prints."""
    run(blocks("docs/tuning.md")[0])
    text = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    assert f"```text\n{capsys.readouterr().out}```" in text


@pytest.mark.parametrize("name", ["migration", "models"])
def test_examples_of_other_pages(name, capsys):
    if name == "models":
        pytest.importorskip("transformers", minversion="5")
    (code,) = blocks(f"docs/{name}.md")
    run(code)
