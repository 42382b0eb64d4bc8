# SPDX-License-Identifier: Apache-2.0
"""Steps on batches of samples of any lengths over ranks, against one process, in float64."""

import pytest

pytest.importorskip("transformers", minversion="5")

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import model_zoo as zoo
import test_transformers as models
import trainer_cases as cases
from magi_attention import attention, masks
from magi_attention.batch import BatchPlan
from magi_attention.integrations.batches import MagiBatchCollator, weighted_loss
from magi_attention.integrations.trainer import use
from ranks import over, refuses
from test_hybrid import float64

HYBRIDS = ("qwen3_next", "bamba", "jamba", "lfm2")


def model_of(name: str, implementation: str) -> torch.nn.Module:
    """A tiny model; equal names give equal weights."""
    if name not in HYBRIDS:
        return models.model(name, implementation)
    model = zoo.make(name)
    model.set_attn_implementation(implementation)
    return model


def samples_of(seed: int, count: int = 8, longest: int = 60) -> list[dict]:
    """Most are short, some long; the first tokens have no labels, some sequences none at all."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        share = float(torch.rand((), generator=random)) ** 3
        rows = 1 + int(share * longest)
        ids = torch.randint(1, models.VOCABULARY, (rows,), generator=random)
        labels = ids.clone()
        labels[: rows // 3] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def reference(model: torch.nn.Module, samples: list[dict], average: str):
    """Loss and gradients of one process."""
    sums = [cases.sum_of_losses(model, sample) for sample in samples]
    counts = [int((sample["labels"][1:] != -100).sum()) for sample in samples]
    if average == "tokens":
        loss = sum(sums) / sum(counts)
    else:
        learned = [(one, n) for one, n in zip(sums, counts) if n]
        loss = sum(one / n for one, n in learned) / len(learned)
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters()}


def distance(found: torch.Tensor | None, wanted: torch.Tensor | None, group) -> float:
    """Of a sum over ranks from what is wanted, as a share of that."""
    like = found if wanted is None else wanted
    found = torch.zeros_like(like) if found is None else found.clone()
    dist.all_reduce(found, group=group)
    wanted = torch.zeros_like(like) if wanted is None else wanted
    return float((found - wanted).norm() / (wanted.norm() + 1e-6))


def model_error(group, name: str, seed: int, average: str) -> float:
    """How far loss and gradients of all ranks, added up, are from those of one process."""
    samples = samples_of(seed)
    model, alone = use(model_of(name, "magi")), model_of(name, "eager")
    collator = MagiBatchCollator(model, 96, cp_group=group, num_micro_batches=3, average=average)
    loss = torch.zeros((), dtype=torch.float64)
    per_rank = -(-len(samples) // (3 * dist.get_world_size(group)))
    for batch in collator.deal(DataLoader(samples, per_rank, collate_fn=collator)):
        given = [batch.pop(key) for key in ("shift_labels", "loss_weights")]
        del batch["labels"]
        with float64(model):
            part = weighted_loss(model(**batch).logits, *given)
            part.backward()
        loss += part.detach()
    with float64(model):
        wanted, gradients = reference(alone, samples, average)
    errors = [
        distance(p.grad, gradients[n], group)
        for n, p in model.named_parameters()
        if p.grad is not None or gradients[n] is not None
    ]
    return max(distance(loss, wanted, group), *errors)


def trees_error(group, seed: int) -> float:
    """The same of attention alone, over trees that share prefixes."""
    random = torch.Generator().manual_seed(seed)
    sizes = [int(n) for n in torch.randint(1, 40, (12,), generator=random)]
    trees = [masks.from_tree([-1, 0, 0, 1], sizes[i : i + 4]) for i in range(0, 12, 4)]
    plan = BatchPlan.from_masks(trees, num_ranks=dist.get_world_size(group), rows_per_rank=120)
    errors = []
    for m in range(plan.num_micro_batches):
        bound = plan.plan(m, num_heads_q=2, num_heads_kv=1, head_dim=8).bind(group)
        rows = bound.total_seqlen
        q, k, v, weight = (
            torch.randn(rows, n, 8, dtype=torch.float64, generator=random).requires_grad_()
            for n in (2, 1, 1, 2)
        )
        out = bound.calc_attn(*(bound.dispatch(x) for x in (q, k, v)))[0]
        loss = (out * bound.dispatch(weight.detach())).sum()
        loss.backward()
        whole = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        wanted = (attention(*whole, plan.mask(m)) * weight.detach()).sum()
        wanted.backward()
        errors.append(distance(loss.detach(), wanted.detach(), group))
        errors += [
            float((x.grad - y.grad).norm() / y.grad.norm()) for x, y in zip((q, k, v), whole)
        ]
    return max(errors)


def error_of(group, seed: int) -> float:
    """Of a random batch: a model of full attention and windows or a hybrid one, or trees."""
    names = ("llama", "gemma2", "gpt_oss", "trees", *HYBRIDS)
    name, turn = names[seed % len(names)], seed // len(names)
    if name == "trees":
        return trees_error(group, seed)
    return model_error(group, name, seed, ("tokens", "sequences")[turn % 2])


ALLOWED = 1e-10


@over(2, 4)
def test_losses_and_gradients_are_those_of_one_process(group):
    for seed in range(5):
        error = error_of(group, seed)
        assert error <= ALLOWED, f"seed {seed}: {error:.3g}"


class TestSteps:
    """The loader of a step's micro-batches."""

    def test_has_the_samples_of_the_steps_and_skips_for_nothing(self):
        from accelerate import skip_first_batches

        collator = MagiBatchCollator(models.model("llama", "magi"), 64, num_micro_batches=2)
        read = []

        class Samples(list):
            def __getitem__(self, index):
                read.append(index)
                return list.__getitem__(self, index)

        dataset = Samples(samples_of(1, 10, 30))
        loader = collator.deal(DataLoader(dataset, 2, collate_fn=collator))
        assert len(loader) == 5
        tickets = list(loader.batch_sampler)
        steps = [ticket.batch.indices for (ticket,) in tickets]
        assert steps == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2 + [[8, 9]]
        assert read == []
        batch = collator([loader.dataset[tickets[2][0]]])
        assert read == [4, 5, 6, 7]
        assert "loss_weights" not in batch and "labels" in batch
        read.clear()
        loaders = skip_first_batches(loader, 3), loader
        later, whole = ([one["input_ids"].tolist() for one in each] for each in loaders)
        assert later == whole[3:] and read == [*range(4, 10), *range(10)]
        dataset.append({"input_ids": torch.ones(129, dtype=torch.int64)})
        loader = collator.deal(DataLoader(dataset, 2, sampler=[3, 10], collate_fn=collator))
        refuses(lambda: next(iter(loader)), ValueError, "sample 10 of the dataset: rows is 129")

    def test_one_call_takes_a_whole_step(self):
        collator = MagiBatchCollator(models.model("llama", "magi"), 64)
        found = collator(samples_of(2, 4, 12))
        rows = sum(len(sample["input_ids"]) for sample in samples_of(2, 4, 12))
        assert rows <= found["input_ids"].shape[1] <= 64

    @pytest.mark.parametrize("lengths", [(), (0, 0), (0, 3), (1,)], ids=str)
    def test_batches_at_the_edge(self, lengths):
        """A micro-batch without samples has a row of padding."""
        collator = MagiBatchCollator(models.model("llama", "magi"), 64)
        samples = [{"input_ids": torch.ones(n, dtype=torch.int64)} for n in lengths]
        assert collator(samples)["input_ids"].shape == (1, max(sum(lengths), 1))

    def test_refuses(self):
        model = models.model("llama", "magi")
        refuses(lambda: MagiBatchCollator(model, 0), ValueError, "rows_per_rank is 0")
        refuses(
            lambda: MagiBatchCollator(model, 8, average="rows"), ValueError, "average is 'rows'"
        )
        collator = MagiBatchCollator(model, 8)
        long = [{"input_ids": torch.ones(9, dtype=torch.int64)}]
        refuses(lambda: collator(long), ValueError, "sample 0: rows is 9")
        two = [{"input_ids": torch.ones(6, dtype=torch.int64)}] * 2
        refuses(lambda: collator(two), ValueError, "num_micro_batches is 1; allowed: .* 2 or more")
