# SPDX-License-Identifier: Apache-2.0
"""calc_attn under settings. A setting is names of SETTINGS or parts joined by +: degreeN (stages of
remote keys), auto (the cost model's degree), work=MODE (what travels: keys, queries too, or auto),
smsN (multiprocessors left to exchanges), boundN (MiB of exchange memory at most) and NAME=VALUE (a
variable of the environment while the plan is made, bound and first run).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from dataclasses import dataclass, field

import torch

from attention_masks import INFINITE
from magi_attention import api
from magi_attention.common import AttnRange, AttnRanges
from magi_attention.compat.keys.lookup import runtime_of
from magi_attention.config.dist_attn import WORK_MODES
from magi_attention.plan import BoundPlan, Plan
from magi_attention.plan_memory import memory_over_nvlink

# Names for combinations; the default is what a user gets who sets nothing.
SETTINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "auto": ("auto",),
    "degree0": ("degree0",),
    "degree1": ("degree1",),
    "degree2": ("degree2",),
    "degree4": ("degree4",),
}


@dataclass(frozen=True)
class Setting:
    """What differs from the default."""

    name: str
    overlap: api.OverlapConfig | None = None
    work: str | None = None
    exchange_sms: int | None = None
    max_exchange_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether a key's configuration says it all."""
        return self.exchange_sms is None and not self.environment

    def config(self) -> api.DistAttnConfig:
        overlap = {} if self.overlap is None else {"overlap_config": self.overlap}
        return api.DistAttnConfig(
            work=self.work, max_exchange_bytes=self.max_exchange_bytes, **overlap
        )

    @contextlib.contextmanager
    def environment_set(self):
        """The variables are set inside."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def parse_setting(text: str) -> Setting:
    """SystemExit for parts that are none."""
    overlap, work, exchange_sms, bound, environment = None, None, None, None, {}
    for part in (part for name in text.split("+") for part in SETTINGS.get(name, (name,))):
        if part == "auto":
            overlap = api.OverlapConfig(mode=api.AttnOverlapMode.DYNAMIC, degree=None)
        elif match := re.fullmatch(r"degree(\d+)", part):
            overlap = api.OverlapConfig(degree=int(match[1]))
        elif match := re.fullmatch(f"work=({'|'.join(WORK_MODES)})", part):
            work = match[1]
        elif match := re.fullmatch(r"sms(\d+)", part):
            exchange_sms = int(match[1])
        elif match := re.fullmatch(r"bound(\d+)", part):
            bound = int(match[1]) << 20
        elif match := re.fullmatch(r"([A-Z_0-9]+)=(.*)", part):
            environment[match[1]] = match[2]
        else:
            parts = "degreeN, auto, work=MODE, smsN, boundN, NAME=VALUE"
            allowed = ", ".join([*SETTINGS, f"or {parts} joined by +"])
            raise SystemExit(f"--settings has {text}; allowed: {allowed}")
    return Setting(text, overlap, work, exchange_sms, bound, environment)


def with_work(settings: list[str], modes: list[str]) -> list[str]:
    """Every setting under every mode of work; that of keys keeps its name. SystemExit for a mode
    that is none.
    """
    for mode in modes:
        if mode not in WORK_MODES:
            raise SystemExit(f"--work has {mode}; allowed: {', '.join(WORK_MODES)}")
    return [
        name if mode == "keys" else f"{name}+work={mode}" for name in settings for mode in modes
    ]


def typed(slices, length: int):
    """q ranges, k ranges and types of the benches' band slices, as the package takes them."""
    q, k, types = [], [], []
    for q0, q1, k0, k1, d_min, d_max in slices:
        if d_min != -INFINITE:
            if (q0, q1, k0, k1, d_max) != (0, length, 0, length, 0):
                raise ValueError(f"slice is {(q0, q1, k0, k1, d_min, d_max)}; allowed: one window")
            whole = AttnRange(0, length)
            return api.infer_attn_mask_from_sliding_window(whole, whole, (-d_min, 0))
        is_causal = d_max != INFINITE
        if is_causal and d_max != k1 - q1:
            raise ValueError(f"d_max is {d_max}; allowed: {k1 - q1}, at the slice's last corner")
        q.append((q0, q1))
        k.append((k0, k1))
        types.append("causal" if is_causal else "full")
    return AttnRanges.from_ranges(q), AttnRanges.from_ranges(k), types


class Differentiated:
    """What attend(q, k, v) says, with the backward that autograd makes of it."""

    def forward(self, q, k, v):
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        out = self.attend(q, k, v)
        return out.detach(), (out, (q, k, v))

    def backward(self, dout, saved):
        out, inputs = saved
        return torch.autograd.grad(out, inputs, dout)


class OfBackend(Differentiated):
    """Attention of a whole sequence by the kernels of another package, as Plan.bind names it."""

    def __init__(self, backend: str, slices, length: int, shape) -> None:
        heads_q, heads_kv, dim = shape
        plan = Plan.from_ranges(
            *typed(slices, length), length, cp_size=1, num_heads_q=heads_q,
            num_heads_kv=heads_kv, head_dim=dim,
        )  # fmt: skip
        self._bound = plan.bind(None, backend=backend)

    def attend(self, q, k, v):
        return self._bound.calc_attn(q, k, v)[0]


class Ours(Differentiated):
    """calc_attn of one mask under a setting on a group."""

    def __init__(self, setting: Setting, slices, length: int, shape, group) -> None:
        self._setting, self._key = setting, None
        ranges = typed(slices, length)
        heads_q, heads_kv, dim = shape
        with setting.environment_set():
            if setting.is_plain:
                self._key = api.magi_attn_flex_key(
                    *ranges, length, length, heads_q, heads_kv, dim, cp_group_or_mesh=group,
                    dist_attn_config=setting.config(),
                )  # fmt: skip
                self.bound = bound_of(self._key)
            else:
                plan = Plan.from_ranges(
                    *ranges, length, cp_size=group.size(), num_heads_q=heads_q,
                    num_heads_kv=heads_kv, head_dim=dim, config=setting.config(),
                )  # fmt: skip
                self.bound = plan.bind(group, exchange_sms=setting.exchange_sms)
        self.placement = (self.bound.plan.chunk_size, *self.bound.plan.chunk_ranks)
        self.rows = self.bound.plan.ranges_of(self.bound.rank).to_naive_ranges()
        self.padding = self.bound.local_rows - sum(end - begin for begin, end in self.rows)
        self._is_first = True

    @functools.cached_property
    def is_moving_queries(self) -> bool:
        """Whether some rank receives queries."""
        ranks = json.loads(self.bound.plan.to_json())["ranks"]
        return any(len(rank["q"]) > 1 for rank in ranks)

    def attend(self, q, k, v):
        if self._is_first:
            self._is_first = False
            with self._setting.environment_set():
                return self.attend(q, k, v)
        if self._key is None:
            return self.bound.calc_attn(q, k, v)[0]
        return api.calc_attn(q, k, v, self._key)[0]

    def planned_bytes(self, element_bytes: int) -> int:
        """What a layer holds by the plan; over transports other than nvlink the rows alone: keys
        and values of other ranks, this rank's float32 gradients of them, and theirs of its own.
        """
        if self.bound.communicator.backend == "nvlink":
            return memory_over_nvlink(self.bound.plan)[self.bound.rank].peak
        report = self.bound.plan.handle.report()
        heads, dim, rank = report.num_heads_kv, report.head_dim_qk, self.bound.rank
        sent = sum(report.pair_bytes[rank * report.num_ranks + i] for i in range(report.num_ranks))
        received = report.remote_rows[rank] * heads * dim * 2
        rows_sent = sent // 2 // heads // dim // 2  # a plan counts elements of two bytes
        return received * (element_bytes + 4) + rows_sent * heads * dim * 2 * 4

    def figures(self) -> dict:
        """Of the plan."""
        report = self.bound.plan.report
        return {
            "stages": report.num_stages,
            "balance": report.balance,
            "is_moving_queries": self.is_moving_queries,
            "forward_bytes": report.total_bytes / self.bound.plan.cp_size,
            "predicted_forward_ms": report.forward_seconds * 1e3,
            "predicted_backward_ms": report.backward_seconds * 1e3,
        }


def bound_of(key) -> BoundPlan:
    """The bound plan behind a key."""
    return runtime_of(key).bound
