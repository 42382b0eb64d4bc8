# SPDX-License-Identifier: Apache-2.0
"""Trainer, accelerate, adapters and recomputation with MagiCollator, over ranks and alone, against
the same samples with "sdpa".
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments

import test_transformers as models
from dense import close, gradients
from magi_attention import api
from magi_attention.integrations.batches import MagiBatchCollator
from magi_attention.integrations.trainer import MagiCallback, MagiCollator, unpad, use
from magi_attention.training import Offload
from ranks import refuses, sum_over

STEPS = 4


def on_gpus() -> bool:
    return dist.is_initialized() and dist.get_backend() == "nccl"


def samples(count: int = 32) -> list[dict]:
    """Sequences of 3 to 19 tokens; the first ones are a prompt without labels."""
    generator = torch.Generator().manual_seed(8)
    found = []
    for _ in range(count):
        rows = int(torch.randint(3, 20, (1,), generator=generator))
        ids = torch.randint(1, models.VOCABULARY, (rows,), generator=generator)
        labels = ids.clone()
        labels[: rows // 3] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


@contextlib.contextmanager
def as_torchrun():
    """What Trainer and accelerate read off where they have been started; what they keep for the
    process is forgotten before and afterwards.
    """
    from accelerate.state import AcceleratorState

    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    told = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    told |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT="29591")
    if not on_gpus():
        told["ACCELERATE_USE_CPU"] = "true"
    AcceleratorState._reset_state(reset_partial_state=True)
    with mock.patch.dict(os.environ, told):
        try:
            yield
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)


@contextlib.contextmanager
def sharded_on_cpus():
    """accelerate takes FSDP on GPUs alone, though torch's runs over gloo, too: here it takes it on
    CPUs as it does there.
    """
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    init = AcceleratorState.__init__

    def init_with_fsdp(self, *arguments, fsdp_plugin=None, **options):
        init(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    with mock.patch.object(AcceleratorState, "__init__", init_with_fsdp):
        yield


def groups_of(size: int) -> dist.ProcessGroup:
    """This process's group of `size` neighbours; all ranks call it."""
    world, mine = dist.get_world_size(), None
    for begin in range(0, world, size):
        group = dist.new_group(range(begin, begin + size))
        if begin <= dist.get_rank() < begin + size:
            mine = group
    return mine


def sum_of_losses(model, sample) -> torch.Tensor:
    ids, labels = (sample[name][None].to(model.device) for name in ("input_ids", "labels"))
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    return torch.nn.functional.cross_entropy(
        logits, labels[0, 1:], ignore_index=-100, reduction="sum"
    )


def with_adapters(model):
    """The model under LoRA; equal models get equal adapters."""
    import peft

    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    return peft.get_peft_model(model, lora).double()


def reference(name: str, batches, change: str = "") -> tuple[list[float], dict]:
    """Losses, and weights in the end, of plain gradient descent on batches of samples."""
    model = models.model(name, "eager")
    if change == "lora":
        model = with_adapters(model)
    if on_gpus():
        model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for of_step in batches:
        tokens = sum(int((sample["labels"][1:] != -100).sum()) for sample in of_step)
        loss = sum(sum_of_losses(model, sample) for sample in of_step) / tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: value.detach() for key, value in model.named_parameters()}


def batches_of(dataset, per_rank: int, size: int | None = None) -> list[list[dict]]:
    """Samples of the steps: batches of per_rank samples are dealt out to ranks in turns, or to
    `size` groups.
    """
    per_step = per_rank * (size or dist.get_world_size())
    return [dataset[i : i + per_step] for i in range(0, len(dataset), per_step)]


def check_training(losses, model, wanted, weights, allowed: tuple[float, float]) -> None:
    """allowed: of losses, relative, and of weights."""
    assert len(losses) == STEPS
    for found, other in zip(losses, wanted):
        assert abs(found - other) < allowed[0] * other, (losses, wanted)
    for key, parameter in model.named_parameters():
        for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
            key = key.replace(wrapper, "")
        assert (whole(parameter) - weights[key]).abs().max() < allowed[1], key


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """Also of one whose rows FSDP2 shares out."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


EXACT, ROUNDED = (1e-3, 1e-5), (2e-2, 2e-2)  # losses are logged in float32


class Streamed(torch.utils.data.IterableDataset):
    """A dataset without a length."""

    def __init__(self, dataset: list[dict]) -> None:
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)


def trainer(world, cp_size: int, name: str, options: dict, change: str = "") -> None:
    """Replicas of cp_size ranks: the losses and weights of one process that has all samples."""
    is_shared = change == "shared"  # a batch, by a group
    size, accumulated = dist.get_world_size(), options.get("gradient_accumulation_steps", 1)
    size //= cp_size if is_shared else 1
    # In the last step one gets a sample fewer, and another one none.
    dataset = samples(2 * size * accumulated * STEPS - (3 if size > 1 else 1))
    wanted, weights = reference(name, batches_of(dataset, 2 * accumulated, size), change)
    model = use(models.model(name, "eager"), head_groups=2 if change == "by groups" else None)
    if change == "planned":
        average = "tokens" if accumulated > 1 else None
        collator = MagiBatchCollator(model, 64, average=average)
    else:
        collator = MagiCollator(model, cp_size=cp_size, is_same_on_ranks=is_shared)
    if change == "streamed":
        dataset = Streamed(dataset)
    if change == "lora":
        model = with_adapters(model)
    if change == "offloaded":
        host = Offload(min_bytes=0)
        keeping = {"use_reentrant": False, "context_fn": host.save_attention}
        model.gradient_checkpointing_enable(keeping)
        host.over(model)
    if options.get("bf16"):
        model.float()
    sharded = sharded_on_cpus() if "fsdp" in options else contextlib.nullcontext()
    with (
        as_torchrun(), sharded, tempfile.TemporaryDirectory() as folder, warnings.catch_warnings()
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        arguments = TrainingArguments(
            folder, use_cpu=not on_gpus(), per_device_train_batch_size=2,
            max_steps=STEPS, optim="sgd", learning_rate=0.1, lr_scheduler_type="constant",
            max_grad_norm=0.0, logging_steps=1, report_to=[], save_strategy="no",
            disable_tqdm=True, ddp_backend=dist.get_backend(), train_sampling_strategy="sequential",
            **options,
        )  # fmt: skip
        run = Trainer(
            model, arguments, train_dataset=dataset, callbacks=[MagiCallback(collator)],
        )  # fmt: skip
        run.train()
        version = options["fsdp_config"]["version"] if "fsdp" in options else None
        assert is_sharded(model) == (version == 2)
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    with whole_parameters(run.model_wrapped, version):
        check_training(losses, model, wanted, weights, ROUNDED if options.get("bf16") else EXACT)


def trainer_of(folder, model, dataset, collator, metrics=None, **options) -> Trainer:
    arguments = TrainingArguments(
        folder, use_cpu=not on_gpus(), per_device_eval_batch_size=2, report_to=[],
        disable_tqdm=True, ddp_backend=dist.get_backend() if dist.is_initialized() else None,
        **options,
    )  # fmt: skip
    return Trainer(
        model, arguments, train_dataset=dataset, eval_dataset=dataset, data_collator=collator,
        compute_metrics=metrics, callbacks=[MagiCallback()],
    )  # fmt: skip


def metrics_over_ranks(world, is_shared: bool) -> None:
    """Rows of ranks come with what each predicts, by the name that the error tells, of each sample
    once, and the loss is the mean over tokens, whatever batches they came in.
    """
    dataset, alone = samples(7), models.model("llama", "sdpa")
    hits = tokens = loss = 0
    for sample in dataset:
        found = alone(input_ids=sample["input_ids"][None]).logits[0, :-1].argmax(-1)
        labels = sample["labels"][1:]
        hits, tokens = hits + int((found == labels).sum()), tokens + int((labels != -100).sum())
        loss += sum_of_losses(alone, sample).item()

    def count(prediction):
        labels = prediction.label_ids
        found = prediction.predictions.argmax(-1)[labels != -100] == labels[labels != -100]
        return {"hits": int(found.sum()), "tokens": found.size}

    model = use(models.model("llama", "sdpa"))
    collator = MagiCollator(model, groups_of(2), is_same_on_ranks=is_shared)
    with as_torchrun(), tempfile.TemporaryDirectory() as folder:
        given = (folder, collator.model, dataset, collator, count)
        told = "predictions come as rows in the order of ranks"
        refuses(lambda: trainer_of(*given), ValueError, told)
        refuses(lambda: trainer_of(*given[:4]).predict(dataset), ValueError, told)
        found = trainer_of(*given, label_names=["shift_labels"]).evaluate()
    assert (found["eval_hits"], found["eval_tokens"]) == (hits, tokens)
    assert abs(found["eval_loss"] - loss / tokens) < 1e-5 * loss / tokens


def resumed(world, folder: str, sharded: dict, is_planned: bool = False) -> None:
    """A training that goes on in the midst of an epoch ends with the weights of one that did not
    stop.
    """
    weights, dataset = [], samples(2 * dist.get_world_size() + 5)  # four or five steps an epoch
    options = dict(per_device_train_batch_size=2, max_steps=7, save_steps=6, **sharded)
    for checkpoint in (None, f"{folder}/checkpoint-6"):
        model = use(models.model("llama", "sdpa"))
        collator = MagiCollator(model, cp_size=2, is_same_on_ranks=True)
        if is_planned:
            collator = MagiBatchCollator(model, 64)
        with as_torchrun():
            run = trainer_of(folder, model, dataset, collator, **options)
            run.train(resume_from_checkpoint=checkpoint)
        weights.append(torch.cat([whole(one).view(-1) for one in model.parameters()]))
        dist.barrier()
    assert (weights[0] - weights[1]).abs().max() < 1e-12


def dealt(world) -> None:
    """Every sample goes to one rank, or to all of one group, in an order that ranks agree on."""
    model, rank = use(models.model("llama", "sdpa")), dist.get_rank()
    apart = [dist.new_group([first, first + 2]) for first in range(2)][rank % 2]
    torch.manual_seed(rank)
    for collator, is_shared in (
        (MagiCollator(model, cp_size=2), False),
        (MagiCollator(model, apart, is_same_on_ranks=True), True),
    ):
        loader = torch.utils.data.DataLoader(range(13), 2, shuffle=True, collate_fn=list)
        loader = collator.deal(loader)
        epochs = [list(loader), list(loader)]
        assert epochs[0] != epochs[1] and len(loader) == len(epochs[0])
        found: list = [None] * 4
        dist.all_gather_object(found, epochs[0])
        assert {*map(len, found)} == {len(loader)} and len(loader) == (4 if is_shared else 2)
        if is_shared:
            assert found[:2] == found[2:]
            found = found[:2]
        assert sorted(i for of_rank in found for batch in of_rank for i in batch) == [*range(13)]
    sampler = torch.utils.data.DistributedSampler(range(13))
    loader = torch.utils.data.DataLoader(range(13), sampler=sampler)
    refuses(lambda: collator.deal(loader), ValueError, "the loader has a DistributedSampler; allow")
    refuses(lambda: MagiCollator(model, cp_size=3), ValueError, "cp_size is 3 in a program of 4 pr")
    refuses(lambda: MagiCollator(model, apart, cp_size=2), ValueError, "cp_size is 2 beside cp_gro")


def other_samples(group) -> None:
    """Ranks that say that they hold the same samples, equally long, and do not."""
    rank = dist.get_rank(group)
    collator = MagiCollator(use(models.model("llama", "sdpa")), group, is_same_on_ranks=True)
    ids = torch.arange(30)
    for step in range(3):  # the plan is the same in all of them
        assert collator([{"input_ids": ids + step}])["input_ids"].numel()
    pattern = r"ranks \[2\] of cp_group are given other samples .*, or is_same_on_ranks=False"
    for changes in ({"input_ids": ids + (rank == 2)}, {"position_ids": ids + (rank == 2)}):
        sample = {"input_ids": ids, **changes}
        refuses(lambda: collator([sample]), ValueError, pattern)
    for is_same in (True, False):
        collator = MagiCollator(collator.model, group, is_same_on_ranks=is_same)
        sample = {"input_ids": ids} | ({"pixel_values": ids} if rank == 1 else {})
        others = "samples of rank 1 of the group are refused: .*pixel_values"
        refuses(lambda: collator([sample]), ValueError, "pixel_values" if rank == 1 else others)


def whole_parameters(model, version: int | None):
    """Those of the first FSDP are put together inside; it takes GPUs alone."""
    if version != 1:
        return contextlib.nullcontext()
    from torch.distributed.fsdp import FullyShardedDataParallel

    assert isinstance(model, FullyShardedDataParallel)
    return FullyShardedDataParallel.summon_full_params(model)


def is_sharded(model) -> bool:
    return all(isinstance(p, torch.distributed.tensor.DTensor) for p in model.parameters())


def accelerated(world, cp_size: int, name: str) -> None:
    """A loop of accelerate's under FSDP2: its ranks average, so that losses are multiplied."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    group, size = groups_of(cp_size), dist.get_world_size()
    dataset = samples(2 * size * STEPS)
    wanted, weights = reference(name, batches_of(dataset, 2))
    with as_torchrun(), sharded_on_cpus():
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True
        )
        accelerator = Accelerator(fsdp_plugin=plugin, cpu=not on_gpus())
        model = use(models.model(name, "eager"))
        collator = MagiCollator(model, group)
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, collate_fn=collator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses = []
        for batch in loader:
            tokens = accelerator.reduce((batch["shift_labels"] != -100).sum())
            loss = model(**batch, num_items_in_batch=tokens).loss
            accelerator.backward(loss * size)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach()).item())
        assert is_sharded(model)
    check_training(losses, model, wanted, weights, EXACT)


def by_torch(world, case, *arguments) -> None:
    """A case in float64 on GPUs, whose attention is then made of torch's products."""
    name = {"MAGI_ATTENTION_KERNEL_BACKEND": "sdpa"}
    with mock.patch.dict(os.environ, name), torch.device("cpu"):
        case(world, *arguments)
    api.clear_cache()


def by_kernels(world, *arguments) -> None:
    """trainer in bfloat16."""
    with torch.device("cpu"):
        trainer(world, *arguments)


def loop(group, name: str, change: str = "") -> None:
    """A plain loop: gradients of one step."""
    dataset = samples(5)
    model = use(models.model(name, "eager"))
    alone = models.model(name, "eager")
    if change == "lora":
        model = with_adapters(model)
        alone = with_adapters(alone)
    elif change == "checkpointed":
        model.gradient_checkpointing_enable()
        model.train()
    arguments = MagiCollator(model, group, is_same_on_ranks=True)(dataset)
    shifted = arguments.pop("shift_labels")
    del arguments["labels"]
    loss = models.loss_of(model(**arguments).logits, shifted)
    loss.backward()
    total, found = loss.detach().clone(), gradients(model)
    sum_over(group, total, *found.values())
    wanted = sum(sum_of_losses(alone, sample) for sample in dataset)
    wanted.backward()
    assert abs(total - wanted) < 1e-4 * wanted
    if change == "lora":
        assert all("lora" in key for key in found)
    close(found, gradients(alone), 1e-4)


def own_samples(group) -> None:
    """Each rank brings its samples; all of them are in the sequence, in the order of ranks."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    dataset = samples(3 * size)
    model = use(models.model("llama", "sdpa"))
    with mock.patch("magi_attention.integrations.trainer._log.warning") as told:
        collator = MagiCollator(model, group)
        for _ in range(2):
            batch = collator(dataset[3 * rank : 3 * rank + 3])
    assert [call.args[1:3] for call in told.mock_calls] == [(size, size)] * (rank == 0)
    whole = batch["magi_plan"]
    ids = api.undispatch(batch["input_ids"][0], whole)
    assert torch.equal(ids, torch.cat([sample["input_ids"] for sample in dataset]))
    positions = api.undispatch(batch["position_ids"][0], whole)
    assert torch.equal(positions, torch.cat([torch.arange(len(s["input_ids"])) for s in dataset]))


def without_a_group(world) -> None:
    """None is no group in one of several processes; one of its own is, as the error says."""
    model, dataset = use(models.model("llama", "sdpa")), samples(2)
    collator = MagiCollator(model, world)
    collator.cp_group = None  # as if it had been made before torch.distributed was up
    for call in (lambda: MagiCollator(model, None), lambda: collator(dataset)):
        refuses(call, ValueError, "cp_group is None in one of 4 processes; allowed: a group, made")
    rank = dist.get_rank()
    own = dist.new_group([rank], use_local_synchronization=True)
    loss = model(**MagiCollator(model, own)(dataset)).loss
    ids, labels = (dataset[0][name][None] for name in ("input_ids", "labels"))
    pattern = "magi_plan is missing where LlamaAttention attends in 4 processes; allowed: magi_plan"
    for call in (model, torch.compile(model, backend="eager")):
        refuses(lambda: call(input_ids=ids, labels=labels), (ValueError, RuntimeError), pattern)
    model.set_attn_implementation("sdpa")
    assert loss.isfinite() and model(input_ids=ids, labels=labels).loss.isfinite()


def padded(group) -> None:
    """A padded batch becomes its samples."""
    dataset = samples(4)
    rows = max(len(sample["input_ids"]) for sample in dataset)
    ids, labels = torch.zeros(4, rows).long(), torch.full((4, rows), -100)
    mask = torch.zeros(4, rows).long()
    for i, sample in enumerate(dataset):
        count = len(sample["input_ids"])
        place = slice(0, count) if i % 2 else slice(rows - count, rows)
        ids[i, place], labels[i, place], mask[i, place] = sample["input_ids"], sample["labels"], 1
    found = unpad({"input_ids": ids, "labels": labels, "attention_mask": mask})
    for one, other in zip(found, dataset):
        assert all(torch.equal(one[name], other[name]) for name in ("input_ids", "labels"))
