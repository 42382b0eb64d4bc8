# SPDX-License-Identifier: Apache-2.0
"""Configuration of distributed attention."""

from __future__ import annotations

from dataclasses import dataclass, field

from magi_attention.common._arguments import MAX_ROWS, check_choice, check_int, check_kind
from magi_attention.config.dispatch import DispatchConfig
from magi_attention.config.grpcoll import GrpCollConfig
from magi_attention.config.overlap import OverlapConfig, chosen_overlap

_MAX_BYTES = (1 << 63) - 1
WORK_MODES = ("keys", "queries", "auto", "heads")  # in the library's order


@dataclass(frozen=True)
class DistAttnConfig:
    """The options of a plan beyond its mask. Hashable; equal configurations make equal keys.

    - dispatch_config: how rows are placed. overlap_config: how communication and attention overlap.
      grpcoll_config: accepted without effect.
    - work: what travels. "keys"; "queries": these too where that moves fewer bytes; "heads": both,
      to ranks that share out the kv heads; "auto": the fastest as predicted. None: "heads" where
      MAGI_ATTENTION_FLATTEN_HEAD_GROUPS is 1, else "queries" where MAGI_ATTENTION_QO_COMM is 1,
      else "auto" for a contiguous layout; for a permuted one "keys", or where the cost model says
      that more than a fifth of the step could be gained, the fastest of a few plans.
    - head_shares: with work "heads", into how many shares kv heads are divided: a common divisor of
      ranks and kv heads, which ValueError names when the plan is made. 0: the fastest as predicted.
    - max_exchange_bytes: the most bytes that a rank holds of rows of others and their gradients, in
      segments (PlanReport.rank_memory; transports hold buffers beside them). Where it takes more,
      they come in stages of which two are there at a time. ValueError when a plan is made that
      cannot keep it. None: 4 GiB where a plan can keep that. 0: no bound.

    TypeError for parts of other types. ValueError for other values of work, and for head_shares
    beside another work than "heads".
    """

    dispatch_config: DispatchConfig = field(default_factory=DispatchConfig)
    overlap_config: OverlapConfig = field(default_factory=chosen_overlap)
    grpcoll_config: GrpCollConfig = field(default_factory=GrpCollConfig)
    work: str | None = None
    head_shares: int = 0
    max_exchange_bytes: int | None = None

    def __post_init__(self) -> None:
        check_kind("dispatch_config", self.dispatch_config, DispatchConfig, "DispatchConfig")
        check_kind("overlap_config", self.overlap_config, OverlapConfig, "OverlapConfig")
        check_kind("grpcoll_config", self.grpcoll_config, GrpCollConfig, "GrpCollConfig")
        if self.work is not None:
            check_choice("work", self.work, WORK_MODES)
        check_int("head_shares", self.head_shares, 0, MAX_ROWS)
        if self.max_exchange_bytes is not None:
            check_int("max_exchange_bytes", self.max_exchange_bytes, 0, _MAX_BYTES)
        if self.head_shares > 0 and self.work != "heads":
            raise ValueError(
                f"head_shares is {self.head_shares} with work {self.work!r}; "
                "allowed: 0, or work 'heads'; try: work='heads' beside it"
            )
        parts = (
            self.dispatch_config, self.overlap_config, self.grpcoll_config, self.work,
            self.head_shares, self.max_exchange_bytes,
        )  # fmt: skip
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash
