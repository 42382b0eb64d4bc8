# SPDX-License-Identifier: Apache-2.0
"""Trains one run on the ranks of the process group: data parallel x context parallel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from model import Shape
from runs import Run, sum_of_losses
from text import IGNORED, Packed, Text


@dataclasses.dataclass(frozen=True)
class Job:
    """What all runs share. A step takes `sequences` sequences of the text, whatever the layout."""

    shape: Shape
    steps: int
    sequences: int
    learning_rate: float
    device: torch.device
    fsdp: bool


def make_mesh(device: torch.device, cp: int) -> DeviceMesh:
    """Replicas of `cp` ranks each."""
    replicas = dist.get_world_size() // cp
    return init_device_mesh(device.type, (replicas, cp), mesh_dim_names=("dp", "cp"))


def _mine(run: Run, job: Job, text: Text, step: int, mesh: DeviceMesh):
    """This replica's sequences of a step, and the tokens to predict of all sequences."""
    first = step * job.sequences
    count = text.num_sequences  # a job of more steps begins again
    whole = [text.sequence(i % count) for i in range(first, first + job.sequences)]
    if run.is_reversed:
        whole.reverse()
    tokens = sum(int((packed.targets != IGNORED).sum()) for packed in whole)
    replica, replicas = mesh.get_local_rank("dp"), mesh.size(0)
    mine = whole[replica * job.sequences // replicas : (replica + 1) * job.sequences // replicas]
    moved = [
        Packed(*(tensor.to(job.device) for tensor in vars(packed).values())) for packed in mine
    ]
    return moved, tokens


def _shard_parameters(model: torch.nn.Module, mesh: DeviceMesh, is_cuda: bool) -> None:
    """FSDP2 over all ranks: context parallel ranks hold the same rows of parameters as others."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if is_cuda:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    flat = mesh._flatten("dp_cp")
    for layer in model.model.layers:
        fully_shard(layer, mesh=flat, mp_policy=policy)
    fully_shard(model, mesh=flat, mp_policy=policy)


def _sum_gradients(model: torch.nn.Module) -> None:
    """Over all ranks: parts of the loss are sums over tokens."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.view(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(summed.view_as(gradient))


def _backward(run: Run, model, job: Job, mine: list[Packed], tokens: int, mesh) -> torch.Tensor:
    """Gradients of the mean loss over the step's tokens; returns this rank's part of that loss."""
    # FSDP averages gradients over ranks; the sum is what parts of a mean add up to.
    factor = dist.get_world_size() if job.fsdp else 1
    total = torch.zeros((), device=job.device, dtype=torch.float64)
    for packed in mine:
        loss = sum_of_losses(run, model, job.shape, packed, mesh) / tokens
        (loss * factor).backward()
        total += loss.detach()
    if not job.fsdp:
        _sum_gradients(model)
    return total


def train(
    run: Run, job: Job, text: Text, end_step: Callable[[], None] = lambda: None
) -> list[float]:
    """The loss of every step; end_step: called behind each."""
    mesh = make_mesh(job.device, run.cp)
    model = run.make_model(job.shape).to(job.device)
    if job.fsdp:
        _shard_parameters(model, mesh, job.device.type == "cuda")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=job.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    losses = []
    for step in range(job.steps):
        mine, tokens = _mine(run, job, text, step, mesh)
        optimizer.zero_grad()
        loss = _backward(run, model, job, mine, tokens, mesh)
        optimizer.step()
        warmup.step()
        dist.all_reduce(loss)
        losses.append(loss.item())
        end_step()
    return losses


@contextlib.contextmanager
def _float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def first_gradients(run: Run, job: Job, text: Text) -> dict[str, torch.Tensor]:
    """Gradients of the first step in float64, by parameter."""
    mesh = make_mesh(job.device, run.cp)
    with _float64():
        model = run.make_model(job.shape)
        mine, tokens = _mine(run, job, text, 0, mesh)
        _backward(run, model, job, mine, tokens, mesh)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def end_rank(code: int) -> NoReturn:
    """Ends this process with an exit code, without Python's own end: groups that FSDP2 has used
    outlive destroy_process_group in PyTorch 2.13, and where a thread of such a group of gloo lets
    go of a tensor while the interpreter ends, the process aborts.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
