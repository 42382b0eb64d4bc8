# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with attn_implementation="magi", on one process and over ranks. References
run the same weights with "sdpa" and a dense mask, in float64.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    NemotronConfig,
    Qwen3Config,
    StableLmConfig,
)

import dense
import pipeline_cases
from magi_attention import Plan, api
from magi_attention.common import AttnRange, AttnRanges
from magi_attention.integrations.transformers import register, shard
from ranks import refuses

ROWS = 60
BOUNDS = (0, 17, 18, 45, ROWS)
VOCABULARY = 61
WINDOW = 8
_SIZES = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, vocab_size=VOCABULARY, max_position_embeddings=128,
)  # fmt: skip

register()


def model(name: str, implementation: str) -> torch.nn.Module:
    """A tiny model in float64; equal names give equal weights."""
    configs = {
        "llama": lambda: LlamaConfig(**_SIZES),
        "stablelm": lambda: StableLmConfig(**_SIZES),
        "nemotron": lambda: NemotronConfig(**_SIZES),
        "mistral": lambda: MistralConfig(**_SIZES, sliding_window=WINDOW),
        "gemma2": lambda: Gemma2Config(
            **_SIZES, sliding_window=WINDOW, attn_logit_softcapping=3.0, final_logit_softcapping=9.0
        ),
        "qwen3": lambda: Qwen3Config(**_SIZES),
        "gemma3": lambda: Gemma3TextConfig(
            **_SIZES, sliding_window=WINDOW, query_pre_attn_scalar=5,
            layer_types=["sliding_attention", "full_attention"],
        ),
        "gpt_oss": lambda: GptOssConfig(
            **_SIZES, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
    }  # fmt: skip
    torch.manual_seed(7)
    config = configs[name]()
    config._experts_implementation = "eager"  # the others know no float64
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    for key, weights in made.named_parameters():
        if key.endswith("sinks"):
            torch.nn.init.normal_(weights)
    made.set_attn_implementation(implementation)
    return made.double()


def documents(*, window: int | None = None) -> tuple[AttnRanges, AttnRanges, list]:
    """Packed causal documents, under a window of `window` rows where one is given."""
    q_ranges, k_ranges, types = AttnRanges(), AttnRanges(), []
    for begin, end in itertools.pairwise(BOUNDS):
        rows = AttnRange(begin, end)
        size = (-1 if window is None else window - 1, 0)
        q, k, kinds = api.infer_attn_mask_from_sliding_window(rows, rows, size)
        q_ranges.extend(q)
        k_ranges.extend(k)
        types.extend(kinds)
    return q_ranges, k_ranges, types


def plan(cp_size: int = 1, window: int | None = None, on: Plan | None = None) -> Plan:
    return Plan.from_ranges(
        *documents(window=window), ROWS, cp_size=cp_size, num_heads_q=4, num_heads_kv=2,
        head_dim=8, on=on,
    )  # fmt: skip


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """input_ids, labels and position_ids within documents, [1, ROWS]."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(VOCABULARY, (1, ROWS), generator=generator)
    labels = ids.clone()
    labels[0, list(BOUNDS[:-1])] = -100
    ends = itertools.pairwise(BOUNDS)
    return ids, labels, torch.cat([torch.arange(e - b) for b, e in ends]).unsqueeze(0)


def loss_of(logits: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
    """Sum over tokens, in the type of logits; that of transformers is float32."""
    flat = logits.view(-1, VOCABULARY)
    return torch.nn.functional.cross_entropy(flat, shifted.view(-1), reduction="sum")


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def dense_mask(window: int | None = None) -> torch.Tensor:
    """bool [1, 1, ROWS, ROWS]."""
    q_ranges, k_ranges, types = documents(window=window)
    kinds = [kind.to_int_type() for kind in types]
    slices = q_ranges.to_naive_ranges(), k_ranges.to_naive_ranges(), kinds
    return dense.Mask(*slices, ROWS, ROWS).multiplicity().bool()[None, None]


def reference(name: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of the model with dense masks."""
    if name in ("llama", "mistral"):
        implementation, mask = "sdpa", dense_mask(WINDOW if name == "mistral" else None)
    else:  # sdpa knows neither sinks nor softcap
        implementation = "eager"
        masks = {"full_attention": dense_mask(), "sliding_attention": dense_mask(WINDOW)}
        mask = {kind: visible.double().log() for kind, visible in masks.items()}
    module = model(name, implementation)
    ids, labels, positions = batch()
    logits = module(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
    ).logits
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    loss = loss_of(logits, shifted)
    loss.backward()
    return loss.detach(), gradients(module)


def tolerance(name: str) -> float:
    return 1e-4 if name == "gemma2" else 1e-9  # its eager softmax is float32


def trained(group, name: str, checkpointed: bool = False, compiled: bool = False):
    """Loss and gradients of the same model over the ranks of a group (None: alone)."""
    size = 1 if group is None else dist.get_world_size(group)
    module = model(name, "magi")
    if checkpointed:
        module.gradient_checkpointing_enable()
        module.train()
    whole = plan(size, WINDOW if name == "mistral" else None)
    bound = whole.bind(group)
    given = bound
    if name in ("gemma2", "gpt_oss"):
        windowed = plan(size, WINDOW, on=whole).bind(group)
        given = {"full_attention": bound, "sliding_attention": windowed}
    arguments = shard(bound, *batch())
    arguments["magi_plan"] = given
    shifted = arguments.pop("shift_labels")
    del arguments["labels"]
    call = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    loss = loss_of(call(**arguments).logits, shifted)
    loss.backward()
    found = gradients(module)
    total = loss.detach().clone()
    if group is not None:
        for tensor in (total, *found.values()):
            dist.all_reduce(tensor, group=group)
    return total, found


def agrees(group, name: str, checkpointed: bool = False, compiled: bool = False) -> None:
    wanted_loss, wanted = reference(name)
    loss, found = trained(group, name, checkpointed, compiled)
    allowed = tolerance(name)
    assert abs(loss - wanted_loss) <= allowed * abs(wanted_loss)
    assert found.keys() == wanted.keys()
    for key, gradient in wanted.items():
        error = (found[key] - gradient).abs().max().item()
        assert error <= allowed * max(1.0, gradient.abs().max().item()), f"{key}: {error:.3g}"


def loss_of_transformers(group) -> None:
    """shard and num_items_in_batch: losses of ranks add up to that of one process."""
    ids, labels, positions = batch()
    tokens = int((labels[:, 1:] != -100).sum())
    module = model("llama", "magi")
    bound = plan(dist.get_world_size(group)).bind(group)
    arguments = shard(bound, ids, labels, positions)
    loss = module(**arguments, num_items_in_batch=tokens).loss.detach()
    dist.all_reduce(loss, group=group)
    alone = model("llama", "sdpa")
    wanted = alone(input_ids=ids, labels=labels, position_ids=positions, use_cache=False).loss
    assert abs(loss - wanted) < 1e-5


def over_keys(group) -> None:
    """A key in place of a bound plan, position ids along the sequence."""
    ids, _, _ = batch()
    key = api.magi_attn_flex_key(*documents(), ROWS, ROWS, 4, 2, 8, cp_group_or_mesh=group)
    logits = model("llama", "magi")(**shard(key, ids)).logits
    found = api.undispatch(logits[0], key)
    wanted = model("llama", "sdpa")(
        input_ids=ids, attention_mask=dense_mask(), use_cache=False
    ).logits
    assert (found - wanted[0]).abs().max() < 1e-9


def other_samples(group) -> None:
    """Ranks that are given sequences of one length and other tokens, under a plan that has run."""
    ids, labels, positions = batch()
    bound = plan(dist.get_world_size(group)).bind(group)
    for others in ((ids + dist.get_rank(group),), (ids, labels.roll(dist.get_rank(group)))):
        pattern = r"ranks \[1\] of cp_group are given other samples than rank 0; allowed: the same"
        refuses(lambda: shard(bound, *others), ValueError, pattern)
        model("llama", "magi")(**shard(bound, ids, labels, positions))


def rows_from_the_end(group) -> None:
    """A rank's last rows are not those of the sequence."""
    bound = plan(dist.get_world_size(group)).bind(group)
    llama, arguments = model("llama", "magi"), shard(bound, batch()[0])
    refuses(lambda: llama(**arguments, logits_to_keep=1), ValueError, "given logits_to_keep")
    assert llama(**arguments, logits_to_keep=0).logits.shape[1] == bound.local_rows
    assert model("llama", "magi")(**shard(plan().bind(), batch()[0]), logits_to_keep=1).logits.any()


def plans_with_an_idle_rank(group) -> None:
    """They are refused before a model runs, on the ranks that have rows too."""
    idle = pipeline_cases.IDLE
    key = pipeline_cases.make_key(dense.masks(idle.rows)[idle.mask], idle, group)
    ids = torch.arange(idle.rows)
    refuses(lambda: shard(key, ids), ValueError, "the plan gives rank 2 no rows")
