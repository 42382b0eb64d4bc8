# SPDX-License-Identifier: Apache-2.0
"""What a Trainer of transformers does otherwise where its ranks share sequences."""

from __future__ import annotations

from transformers import Trainer


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
