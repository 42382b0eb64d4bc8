# SPDX-License-Identifier: Apache-2.0
"""How many lines run one attention step, against what did when it was written once per memory."""

import re

# Lines at commit bdd11fa: src/runtime/distributed_attention.cpp 143, distributed_backward.cpp 147,
# casted_keys.cpp 40, device_attention.cpp 105 and .hpp 37, device_forward.cpp 114,
# device_backward.cpp 262, device_keys.cpp 122, device_state.cpp 202 and .hpp 155;
# src/comm/wire_order.cpp 88 and .hpp 55, device_rows.cu 251 and .hpp 70; and in
# python/magi_attention/comm/process_group.py the functions _by_peer, _header, _message_bytes,
# _padded, _parts, _row_elements, _pack, _unpack, _targets, _store, _add and _merge 79, and what
# packs and unpacks in start 26.
LINES_BEFORE = 1896

# The files that took their place, those for host memory and for rows over any transport included.
SUCCESSORS = re.compile(
    r"src/(runtime/(step_\w+|prepared_attends|distributed_attention)"
    r"|comm/rows/(row_exchanger|row_memory|packed_exchanger|wire_order|host_memory)"
    r"|comm/device_rows/(device_rows|device_memory))"
    r"\.(cpp|cu|hpp)"
)


def step_lines(cxx_texts):
    """Lines of the files that run a step, as a share of those before."""
    lines = sum(
        len(text.splitlines()) for name, text in cxx_texts.items() if SUCCESSORS.fullmatch(name)
    )
    return round(lines / LINES_BEFORE, 3)
