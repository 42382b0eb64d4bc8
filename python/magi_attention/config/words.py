# SPDX-License-Identifier: Apache-2.0
"""Options of plans in the words of this package, as configuration objects."""

from __future__ import annotations

from magi_attention.common._arguments import check_choice, check_int, check_kind
from magi_attention.config.dispatch import (
    AffinityDispatchAlg,
    AutoDispatchAlg,
    DispatchConfig,
    MinHeapDispatchAlg,
    ThoroughDispatchAlg,
    ZigzagDispatchAlg,
)
from magi_attention.config.dist_attn import DistAttnConfig
from magi_attention.config.overlap import OverlapConfig, chosen_overlap

_ALGORITHMS = {
    "auto": AutoDispatchAlg, "thorough": ThoroughDispatchAlg, "affinity": AffinityDispatchAlg,
    "zigzag": ZigzagDispatchAlg, "min_heap": MinHeapDispatchAlg,
}  # fmt: skip
IN_ORDER = "contiguous"
PLACEMENTS = (*_ALGORITHMS, IN_ORDER)


def chosen_config(
    config: DistAttnConfig | None, placement: str | None, overlap: int | None, work: str | None
) -> DistAttnConfig:
    """Returns `config`, or the configuration that the words ask for; None is a word's default.

    ValueError for words beside a config and for words that are not allowed, TypeError for values
    of other types.
    """
    words = {"placement": placement, "overlap": overlap, "work": work}
    if config is not None:
        check_kind("config", config, DistAttnConfig, "DistAttnConfig, or None")
        for name, value in words.items():
            if value is not None:
                raise ValueError(
                    f"{name} is {value!r} beside config; allowed: one of them; try: {name} as a "
                    "part of config, such as DistAttnConfig(work='auto')"
                )
        return config
    stages = chosen_overlap()
    if overlap is not None:
        stages = OverlapConfig(degree=check_int("overlap", overlap, 0))
    return DistAttnConfig(_placement(placement), stages, work=work)


def _placement(word: str | None) -> DispatchConfig:
    if word is None:
        return DispatchConfig()
    check_choice("placement", word, PLACEMENTS)
    if word == IN_ORDER:
        return DispatchConfig(layout=IN_ORDER)
    return DispatchConfig(alg=_ALGORITHMS[word]())
