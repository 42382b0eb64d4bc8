# SPDX-License-Identifier: Apache-2.0
"""What a Trainer of transformers does otherwise where its ranks share sequences."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import Trainer

from magi_attention.comm.group import num_processes

_LABELS = "shift_labels"
_WEIGHTS = "loss_weights"


def weighted_loss(
    logits: torch.Tensor, shift_labels: torch.Tensor, loss_weights: torch.Tensor
) -> torch.Tensor:
    """The sum over this rank's rows of weight times cross entropy; logits [..., rows, vocabulary],
    labels and weights [..., rows]. Those of all ranks and micro-batches of a step add up to the
    step's average.
    """
    rows = F.cross_entropy(
        logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32)),
        shift_labels.flatten(), reduction="none",
    )  # fmt: skip
    return (rows * loss_weights.flatten()).sum()


def deal_in_trainer(trainer: Trainer) -> None:
    """Has a collator's `deal` deal out what the trainer's accelerator prepares, which would fill up
    the last batches with samples from the start and drop ranks in place of those again.
    """
    from accelerate.data_loader import prepare_data_loader

    accelerator = trainer.accelerator
    prepare = accelerator.prepare_data_loader

    def prepare_dealt(loader, *arguments, **options):
        deal = getattr(loader.collate_fn, "deal", None)
        is_prepared = getattr(loader, "_is_accelerate_prepared", False)
        if deal is not None and not is_prepared:
            loader = prepare_data_loader(
                deal(loader), accelerator.device, num_processes=1, process_index=0,
                put_on_device=accelerator.device_placement, dispatch_batches=False,
                use_seedable_sampler=accelerator.use_seedable_sampler,
                data_seed=accelerator.dataloader_config.data_seed,
                non_blocking=accelerator.non_blocking,
            )  # fmt: skip
            loader._is_accelerate_prepared = True
        return prepare(loader, *arguments, **options)

    vars(accelerator).update(prepare_data_loader=prepare_dealt)


def check_labels(trainer: Trainer) -> None:
    """ValueError where what is predicted stands over ranks beside labels that are to be shifted."""
    if num_processes() > 1 and _LABELS not in trainer.label_names:
        raise ValueError(
            "predictions come as rows in the order of ranks; allowed: over ranks "
            'label_names=["shift_labels"] of TrainingArguments, which has for each row what it '
            "predicts, and metrics that do not shift"
        )


def weigh_losses(trainer: Trainer) -> None:
    """Makes the loss of an evaluation the mean over all its tokens, where the trainer's is one of
    means, of batches or of ranks, and labels of metrics those that label_names names.
    """
    compute, predict, evaluate = (
        trainer.compute_loss, trainer.prediction_step, trainer.evaluation_loop
    )  # fmt: skip
    seen: list[torch.Tensor] = []  # of every batch: its loss times its tokens, and these

    def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
        weights = inputs.pop(_WEIGHTS, None)
        if trainer.model.training and weights is not None:
            given = {n: x for n, x in inputs.items() if n not in ("labels", _LABELS)}
            outputs = model(**given)
            loss = weighted_loss(outputs.logits, inputs[_LABELS], weights)
            loss = loss * num_processes()  # of which gradients are averaged
            return (loss, outputs) if return_outputs else loss
        if trainer.model.training or _LABELS not in inputs:
            return compute(model, inputs, return_outputs, num_items_in_batch)
        if num_items_in_batch is None:
            num_items_in_batch = trainer._get_num_items_in_batch([inputs], trainer.args.device)
        found = compute(model, inputs, return_outputs, num_items_in_batch)
        loss = (found[0] if return_outputs else found).detach().mean().double()
        if num_items_in_batch is None:  # a mean over this rank's tokens
            num_items_in_batch = (inputs[_LABELS] != -100).sum()
        tokens = torch.as_tensor(num_items_in_batch, dtype=loss.dtype, device=loss.device)
        seen.append(torch.where(tokens > 0, torch.stack((loss * tokens, tokens)), 0.0))
        return found

    def prediction_step(model, inputs, *arguments, **options):
        loss, logits, labels = predict(model, inputs, *arguments, **options)
        if logits is not None:
            check_labels(trainer)
        if labels is not None and trainer.label_names == [_LABELS]:
            labels = inputs[_LABELS]  # TRL's takes others
        return loss, logits, labels

    def evaluation_loop(*arguments: Any, metric_key_prefix: str = "eval", **options: Any):
        seen.clear()
        output = evaluate(*arguments, metric_key_prefix=metric_key_prefix, **options)
        name = f"{metric_key_prefix}_loss"
        if seen and name in output.metrics:
            sums = torch.stack(seen).sum(0)
            if num_processes() > 1:
                dist.all_reduce(sums)
            output.metrics[name] = (sums[0] / sums[1]).item()
        return output

    vars(trainer).update(
        compute_loss=compute_loss, prediction_step=prediction_step, evaluation_loop=evaluation_loop
    )
