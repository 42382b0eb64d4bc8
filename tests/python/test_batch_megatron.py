# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of planned batches in Megatron-LM's models."""

from functools import partial

import pytest

pytest.importorskip("megatron.core")

import torch

import test_megatron as cases
from magi_attention import masks
from magi_attention.batch import BatchPlan
from ranks import over, refuses


def plan_of(lengths=cases.DOCUMENTS) -> BatchPlan:
    sizes = dict(num_ranks=4, rows_per_rank=24, num_micro_batches=2, chunk_size=2)
    return BatchPlan.from_lengths(lengths, **sizes)


@over(4)
@pytest.mark.parametrize("average", [None, "tokens", "sequences"])
def test_micro_batches_of_a_step(group, average):
    """Samples that are planned together have the gradients of their packed sequence."""
    changes = {"window_size": (5, 0)} if average == "tokens" else {}
    with cases.on_cpu():
        cases.start(4)
        batch, samples = cases.packed_batch(), cases.samples_of_step()
        for one in samples if average else ():  # this mask's type does not hold its sums
            one["loss_mask"] = 1.0078125 * one["loss_mask"].bfloat16()
        if average is not None:  # the sample of one row has no token that is learned
            rows = torch.tensor(cases.DOCUMENTS)
            of_sequences = 3 * (rows - 1).clamp(min=1).repeat_interleave(rows)
            batch["loss_mask"] /= (rows - 1).sum() if average == "tokens" else of_sequences
        mask = cases.hidden(window=changes.get("window_size", (None,))[0])
        wanted = cases.reference(cases.config(), batch, mask)
        model = cases.gpt(cases.config(4, **changes), True)
        total = torch.zeros((), dtype=torch.float64)
        for m in range(2):
            given = samples, plan_of(), m, model, group
            local = cases.ours.prepare_micro_batch(*given, average=average)
            weights = local["loss_weights" if average else "loss_mask"]
            loss = (cases.losses_of(model, local) * weights).sum()
            loss.backward()
            total += loss.detach()
        found = cases.gradients(model)
        cases.sum_over(group, total, *found.values())
        assert abs(total - wanted[0]) < 1e-5 * abs(wanted[0])
        cases.close(found, wanted[1])


def test_what_the_plan_does_not_fit_is_refused():
    samples = cases.samples_of_step()
    short = [samples[0], {**samples[1], "loss_mask": torch.ones(1)}, *samples[2:]]
    other = BatchPlan.from_masks([masks.from_window(17, 3, 0)], num_ranks=4, rows_per_rank=24)
    for given, plan, message in (
        (samples[:3], plan_of(), "samples has 3; allowed: 4"),
        (samples, plan_of((17, 29, 1, 14)), r"samples\[1\] has tokens of .* \[30\]; .* \[29\]"),
        (short, plan_of(), r"samples\[1\] has loss_mask of shape \[1\]"),
        ([{"tokens": torch.ones(17)}], plan_of((17,)), r"samples\[0\] has tokens; .* labels"),
        (samples[:1], other, "plan has 62 visible pairs .*; allowed: 153"),
    ):
        prepare = partial(cases.ours.prepare_micro_batch, given, plan, 0)
        refuses(lambda: prepare(cases.config()), ValueError, message)
    parallel = cases.config(sequence_parallel=True, tensor_model_parallel_size=4)
    refuses(lambda: prepare(parallel), ValueError, "has chunk_size 1; .* multiple of 4")
