# SPDX-License-Identifier: Apache-2.0
"""What latent attention takes under a plan where latents travel, and where keys and values do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from magi_attention._native.handles import PlanHandle, default_plan_config
from magi_attention.common.plan_report import PlanReport

_SUM_BYTES = 4  # of an element of a gradient on its way
_NO_NODES = 1 << 30  # ranks


@dataclass(frozen=True)
class LatentPrice:
    """A layer's forward and backward as predicted, with the projections of latents: bytes that all
    ranks send and seconds of the slowest rank, where latents travel and where keys and values do.
    """

    latent_bytes: int
    expanded_bytes: int
    latent_seconds: float
    expanded_seconds: float

    @property
    def mode(self) -> str:
        """The faster one, as calc_latent_attn names it; "expanded" where nothing travels."""
        is_faster = self.latent_seconds < self.expanded_seconds
        return "latent" if is_faster and self.expanded_bytes > 0 else "expanded"

    def __str__(self) -> str:
        found = []
        for name in ("latent", "expanded"):
            sent, seconds = getattr(self, f"{name}_bytes"), getattr(self, f"{name}_seconds")
            chosen = ", chosen" if name == self.mode else ""
            found.append(f"{name:8} {sent / 2**20:10.1f} MiB {seconds * 1e3:10.3f} ms{chosen}")
        return "\n".join(found)


def price_latents(
    plan: PlanHandle, keys: PlanHandle, figures: PlanReport, latent: int, rope: int
) -> LatentPrice:
    """figures: of the plan; keys: a plan of the same mask and placement that moves rows straight
    from their owners to who needs them, in one exchange. Attention begins after it, and a backward
    projects latents again.
    """
    config = _config_of(plan)
    cost, width = config["cost"], config["element_bytes"]
    projected = figures.num_heads_kv * (figures.head_dim - rope + figures.head_dim_v)
    of_row = 2 * latent * projected / cost["flops_per_second"]
    dim, dim_v = figures.head_dim, figures.head_dim_v
    of_pair = (dim + dim_v) / cost["flops_per_second"]
    of_pair += (3 * dim + 2 * dim_v) / cost["backward_flops_per_second"]
    of_pair *= 2 * figures.num_heads_q
    report = keys.report()
    slowest = 0.0
    for rank in range(report.num_ranks):
        seconds = report.rank_area[rank] * of_pair
        # In the forward, again in the backward, and for gradients of latents and of the weight.
        seconds += 4 * (report.rank_rows[rank] + report.remote_rows[rank]) * of_row
        for of_element in (width, _SUM_BYTES):
            size = config.get("devices_per_node", _NO_NODES)
            seconds += _exchange_seconds(keys, rank, size, (latent + rope) * of_element, cost)
        slowest = max(slowest, seconds)
    remote = sum(report.remote_rows[: report.num_ranks])
    most = max(report.rank_rows[: report.num_ranks])
    return LatentPrice(
        remote * (latent + rope) * (width + _SUM_BYTES),
        figures.total_bytes * 2 + figures.total_bytes // width * _SUM_BYTES,
        slowest,
        figures.forward_seconds + figures.backward_seconds + 3 * most * of_row,
    )


def _exchange_seconds(keys: PlanHandle, rank: int, node: int, row_bytes: int, cost: dict) -> float:
    """The seconds in which a rank receives its rows and sends those of others. Links inside a node
    and between nodes work at the same time.
    """
    report = keys.report()
    size, width = report.num_ranks, 2 * report.head_dim_qk * 2  # k and v of one head, 2 bytes each
    found = []
    for is_near, prefix in ((True, ""), (False, "network_")):
        peers = [peer for peer in range(size) if (peer // node == rank // node) == is_near]
        ways = ([(peer, rank) for peer in peers], [(rank, peer) for peer in peers])
        moved = [[report.pair_bytes[src * size + dst] // width for src, dst in way] for way in ways]
        messages = max(sum(rows > 0 for rows in way) for way in moved)
        seconds = max(map(sum, moved)) * row_bytes / cost[f"{prefix}bytes_per_second"]
        found.append(seconds + messages * cost[f"{prefix}seconds_per_transfer"])
    return max(found)


def _config_of(plan: PlanHandle) -> dict[str, Any]:
    """The configuration in a plan's JSON, of which nothing else is read."""
    text, name = plan.to_json(), '"config": '
    config = json.JSONDecoder().raw_decode(text, text.index(name) + len(name))[0]
    defaults = default_plan_config()
    for name in ("network_bytes_per_second", "network_seconds_per_transfer"):
        config["cost"].setdefault(name, getattr(defaults, name))
    return config
