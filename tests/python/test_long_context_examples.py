# SPDX-License-Identifier: Apache-2.0
"""examples/long_context: over two ranks each recipe has the losses of one."""

import contextlib
import gc
import os
import pathlib
import sys
from functools import partial
from unittest import mock

import pytest
import torch
from torch.nn.functional import cross_entropy

from magi_attention.training.offload import Offload, _Stored

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "long_context"
sys.path.append(str(FOLDER))

import recipe  # noqa: E402

TINY = ["--small", "--tokens", "160", "--steps", "3", "--rate", "1e-3"]


def by_pytorch(group, *more: str) -> list[float]:
    import pytorch_fsdp

    given = pytorch_fsdp.parse([*TINY, *more])
    return pytorch_fsdp.train(given, group, torch.get_default_device())


def by_megatron(group, cp_size: int) -> list[float]:
    """Over several ranks all tensors that Offload may move do so."""
    import megatron_train
    import test_megatron as cases

    given, device = recipe.parser_of("").parse_args(TINY), torch.get_default_device()
    own, least = cases.tensor_parallel.checkpoint, partial(Offload, min_bytes=0)
    moved = mock.patch.object(_Stored, "fetch", autospec=True, side_effect=_Stored.fetch)
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, cases.tensor_parallel, "checkpoint", own)
        cp_group = cases.start(cp_size)
        if device.type == "cpu":
            stack.enter_context(cases.recomputing_on_cpu())
            stack.enter_context(mock.patch.object(Offload, "_MOVED", ("cpu",)))
        else:
            cases.tensor_parallel.model_parallel_cuda_manual_seed(0)
        if cp_size > 1:
            stack.callback(stack.enter_context(moved).assert_called)
            stack.enter_context(mock.patch.object(megatron_train, "Offload", least))
        return megatron_train.train(given, cp_group, device)


def by_torchtitan(group, cp_size: int) -> list[float]:
    """Steps of its Trainer, which asks for a GPU in places; FSDP2 over gloo knows sums alone."""
    import torchtitan.tools.utils as utils

    returned = {"device_count": 1, "memory_stats": {}, "get_device_name": "cpu"}
    utils.device_type = "cpu"
    utils.device_module = mock.Mock(**{f"{name}.return_value": x for name, x in returned.items()})
    utils.device_module.get_device_properties.return_value.total_memory = 1
    os.environ["LOCAL_RANK"] = "0"
    import torchtitan_qwen3 as ours

    given, losses = recipe.parser_of("").parse_args(TINY), []
    spec = ours.model_registry("debugmodel")
    del spec.model.layers[1:]
    batches = [
        ({"input": packed.ids[None], "positions": packed.positions[None]}, packed.targets[None])
        for packed in recipe.sequences(given, torch.device("cpu"))
    ]
    config = ours.config_of(
        spec, given.tokens, dataloader=mock.Mock(**{"build.return_value": batches}),
        tokenizer=mock.Mock(), optimizer=ours.default_adamw(lr=given.rate),
    )  # fmt: skip
    config.parallelism.context_parallel_degree, config.debug.seed = cp_size, 0
    config.training.mixed_precision_param, config.lr_scheduler.warmup_steps = "float32", 0
    trainer = config.build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, torch.distributed.fsdp.FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    trainer.metrics_processor.log = lambda step, loss, *_, **__: losses.append(loss)
    data = trainer.batch_generator(trainer.dataloader)
    for _ in batches:
        trainer.step += 1
        trainer.train_step(data)
    gc.enable()
    return losses


def check(alone: list[float], shared: list[float], allowed: float = 2e-6) -> None:
    """Losses of one rank, which those of several are equal to, and which fall from the first on:
    each step has other documents.
    """
    assert shared == pytest.approx(alone, abs=allowed)
    assert max(alone[1:]) < alone[0] - 0.05


def test_pytorch(ranks, tmp_path):
    """With random weights; those of a folder have the loss that transformers gives them."""
    transformers = pytest.importorskip("transformers", minversion="5")
    check(*(ranks.run(size, by_pytorch)[0] for size in (1, 2)))
    import pytorch_fsdp

    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**pytorch_fsdp.SMALL))
    model.save_pretrained(tmp_path)
    given = pytorch_fsdp.parse([*TINY, "--steps", "1"])
    (packed,) = recipe.sequences(given, torch.device("cpu"))
    lengths = packed.bounds.diff().tolist()
    logits = [model(ids[None]).logits[0] for ids in packed.ids.split(lengths)]
    wanted = cross_entropy(torch.cat(logits), packed.targets, ignore_index=recipe.IGNORED)
    found = ranks.run(2, by_pytorch, "--steps", "1", "--weights", str(tmp_path))[0]
    assert found == pytest.approx([wanted.item()], abs=2e-6)


def test_megatron(ranks):
    """Megatron's groups are of all processes."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    check(*(ranks.run(4, by_megatron, size)[0] for size in (1, 2)))


def test_torchtitan(ranks):
    """Ranks that share no sequence each have the same one."""
    pytest.importorskip("torchtitan", reason="torchtitan is not installed")
    check(*(ranks.run(4, by_torchtitan, size)[0] for size in (1, 4)))
