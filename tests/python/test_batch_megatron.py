# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of planned batches in Megatron-LM's models."""

import pytest

pytest.importorskip("megatron.core")

import torch

import test_megatron as cases
from magi_attention.batch import BatchPlan
from ranks import over


@over(4)
@pytest.mark.parametrize("changes", [{}, {"window_size": (5, 0)}], ids=str)
def test_micro_batches_of_a_step(group, changes):
    """Samples that are planned together have the gradients of their packed sequence."""
    with cases.on_cpu():
        cases.start(4)
        batch = cases.packed_batch()
        mask = cases.hidden(window=changes.get("window_size", (None,))[0])
        wanted = cases.reference(cases.config(), batch, mask)
        model = cases.gpt(cases.config(4, **changes), True)
        names = ("tokens", "labels", "loss_mask")
        parts = zip(*(batch[name][0].split(list(cases.DOCUMENTS)) for name in names), strict=True)
        samples = [dict(zip(names, part, strict=True)) for part in parts]
        plan = BatchPlan.from_lengths(
            cases.DOCUMENTS, num_ranks=4, rows_per_rank=24, num_micro_batches=2, chunk_size=2
        )
        total = torch.zeros((), dtype=torch.float64)
        for m in range(2):
            local = cases.ours.prepare_micro_batch(samples, plan, m, model, group)
            losses = model(
                local["tokens"], local["position_ids"], None, labels=local["labels"],
                packed_seq_params=local["packed_seq_params"],
            )  # fmt: skip
            loss = (losses * local["loss_mask"]).sum()
            loss.backward()
            total += loss.detach()
        found = cases.gradients(model)
        cases.sum_over(group, total, *found.values())
        assert abs(total - wanted[0]) < 1e-5 * abs(wanted[0])
        cases.close(found, wanted[1])
