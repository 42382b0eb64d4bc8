# SPDX-License-Identifier: Apache-2.0
"""Batches of one packed sequence: their rows, their documents, and a rank's share of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from magi_attention._native.tensors import as_plain
from magi_attention.comm.group import size_of
from magi_attention.comm.process_group import ProcessGroupTransport
from magi_attention.integrations._documents import DESCRIBING, FROM_THE_END, LEARNED, lengths_of
from magi_attention.integrations._prefix_tree import IGNORED_LABEL
from magi_attention.plan import BoundPlan

# What has a value for every row, and the value of padding rows; None: the token of padding.
_ROWS = {
    "input_ids": None, "labels": IGNORED_LABEL, "shift_labels": IGNORED_LABEL, "position_ids": 0,
    "loss_mask": 0, "loss_weights": 0,
}  # fmt: skip


def required(given: Mapping[str, Any], name: str, whose: str) -> Any:
    """given[name]. ValueError where there is none, which tells what there is."""
    if given.get(name) is None:
        found = ", ".join(str(key) for key in given if given[key] is not None)
        raise ValueError(f"{whose} has {found or 'no keys'}; allowed: {name} among them")
    return given[name]


AVERAGES = ("tokens", "sequences")


def weights_of(learned: Sequence[torch.Tensor], average: str) -> list[float]:
    """The weight of a learned token of each sequence of a step, by masks of such tokens, so that
    weighted losses add up to the average over tokens, or over sequences that have any.
    """
    # In float64, as types of masks may not hold their sums, and read at once.
    sums = [one.sum(dtype=torch.float64).to(learned[0].device) for one in learned]
    counts = torch.stack(sums).tolist() if sums else []
    if average == "sequences":
        sequences = sum(n > 0 for n in counts)
        return [1.0 / (n * sequences) if n else 0.0 for n in counts]
    return [1.0 / (sum(counts) or 1.0)] * len(counts)


def refuse_workers(what: str) -> None:
    """ValueError in a worker of a DataLoader."""
    if torch.utils.data.get_worker_info() is not None:
        raise ValueError(
            f"{what} runs in a worker of a DataLoader; allowed: dataloader_num_workers=0, as plans "
            "stay in the process that makes them"
        )


def refuse_other_samples(
    samples: Iterable[Mapping[str, torch.Tensor | None]],
    cp_group: dist.ProcessGroup | None,
    allowed: str = "the same whole batch on its ranks",
) -> None:
    """Collective: ValueError on all ranks of the group where they are given other samples, of which
    each would take its rows. Reads tensors on the host.
    """
    if size_of(cp_group) == 1:
        return
    refuse_workers("what shares a batch out over ranks")
    found = hashlib.sha256()
    for sample in samples:
        for name, value in sample.items():
            if value is not None:
                value = as_plain(name, value).detach().cpu().reshape(-1)
                found.update(f"{name} {value.numel()} {value.dtype}".encode())
                found.update(value.view(torch.uint8).numpy())
    digests = ProcessGroupTransport(cp_group).allgather(found.digest())
    other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if other:
        raise ValueError(
            f"ranks {other} of cp_group are given other samples than rank 0; allowed: {allowed}"
        )


def refuse_unused(batch: Mapping[str, Any], num_ranks: int) -> None:
    """ValueError by the name of what could change a result and is not shared out."""
    for name, value in batch.items():
        if value is None or name in _ROWS or name in DESCRIBING or name == "attention_mask":
            continue
        if name in LEARNED:
            raise ValueError(f"the batch has {name}; allowed: labels of {IGNORED_LABEL} instead")
        has_rows = bool(value) if name in FROM_THE_END else getattr(value, "ndim", 0) > 0
        if num_ranks > 1 and has_rows:
            raise ValueError(
                f"the batch has {name}, which is not shared out over {num_ranks} ranks; allowed: "
                f"values of rows by the names {', '.join(_ROWS)}"
            )


def flat_batch(batch: Mapping[str, Any], is_packed: bool = False) -> dict[str, Any]:
    """The batch with what has a value for every row as [rows]. is_packed: of several sequences
    too. ValueError for several sequences else, and for sizes that differ from input_ids.
    """
    ids = required(batch, "input_ids", "the batch")
    if not is_packed and (ids.dim() > 2 or (ids.dim() == 2 and ids.shape[0] != 1)):
        raise ValueError(
            f"input_ids has shape {list(ids.shape)}; allowed: [1, rows], packed sequences"
        )
    flat = dict(batch)
    for name in _ROWS:
        value = batch.get(name)
        if value is None:
            flat.pop(name, None)
            continue
        if value.numel() != ids.numel():
            raise ValueError(
                f"{name} has shape {list(value.shape)}; allowed: {list(ids.shape)}, that of "
                "input_ids"
            )
        flat[name] = value.reshape(-1)
    return flat


def document_lengths(batch: Mapping[str, Any], rows: int) -> list[int]:
    """Rows of every document, padding of documents included. Of cu_seqlens_padded, cu_seqlens,
    seq_lens_padded and seq_lens the first that is there; entries below 0 are no documents.
    ValueError where they do not add up to rows, or none is there.
    """
    for name in ("cu_seqlens_padded", "cu_seqlens", "seq_lens_padded", "seq_lens"):
        if batch.get(name) is not None:
            return lengths_of(name, batch[name], rows)
    raise ValueError("the batch has no cu_seqlens; allowed: bounds of documents, or seq_lens")


def share_out(flat: Mapping[str, Any], bound: BoundPlan, pad_id: int) -> dict[str, Any]:
    """This rank's rows of a flat batch, with position ids. Several ranks lose what describes the
    documents of the whole sequence. Collective. ValueError for another number of rows than the
    plan's, for another batch than that of other ranks, and for what is not shared out.
    """
    refuse_unused(flat, bound.plan.cp_size)
    refuse_other_samples([{name: flat.get(name) for name in _ROWS}], bound.cp_group)
    rows = flat["input_ids"].shape[0]
    local = {
        name: value
        for name, value in flat.items()
        if name != "attention_mask" and (bound.plan.cp_size == 1 or name not in DESCRIBING)
    }
    missing = bound.total_seqlen - rows
    # Fewer rows than ranks are padded, so that every rank has one.
    if missing and not 0 < missing < bound.plan.cp_size == bound.total_seqlen:
        raise ValueError(f"input_ids has {rows} rows; allowed: {bound.total_seqlen}, the plan's")
    for name, pad in _ROWS.items():
        value = flat.get(name)
        if value is None:
            continue
        pad = pad_id if pad is None else pad
        if missing:
            value = torch.cat((value, value.new_full((missing, *value.shape[1:]), pad)))
        local[name] = bound.dispatch(value, pad)
    if "position_ids" not in local:
        local["position_ids"] = bound.position_ids_on(local["input_ids"].device)
    return local


def as_one_sequence(local: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of share_out with a batch axis before its rows."""
    return {name: value.unsqueeze(0) if name in _ROWS else value for name, value in local.items()}
