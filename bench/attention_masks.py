# SPDX-License-Identifier: Apache-2.0
"""Masks that the benches time, as band slices (q0, q1, k0, k1, d_min, d_max): query q of [q0, q1)
sees key k of [k0, k1) where d_min <= k - q <= d_max.

As a program it writes masks for device_ranges_bench: attention_masks.py OUT NAME:ROWS...
"""

import json
import pathlib
import random
import sys

INFINITE = 1 << 30
WINDOW = 1024
BLOCK = 2048
VIDEO_BLOCK = 5120  # rows of some frames, at most
DATA = pathlib.Path(__file__).parent / "data"
MASKS = (
    "full",
    "causal",
    "window",
    "varlen_full",
    "varlen_causal",
    "block_causal",
    "prefix_tree",
    "share_question",
    "global_window",
    "video_blocks",
)
OF_DOCUMENTS = ("varlen_full", "varlen_causal", "block_causal", "share_question")
SEED = 15  # of prefix trees, and of the answers to questions
GLOBAL_ROWS = 128
TREE_DEPTH = 6
TREE_LEAST_ROWS = 64


def documents(folder, length, draw):
    """Lengths of the packed documents of one draw."""
    draws = json.loads((folder / "document_draws.json").read_text())["draws"]
    if str(length) not in draws:
        raise SystemExit(f"documents of {length} rows; allowed: {', '.join(draws)}")
    return draws[str(length)][draw]


def mask_slices(name, length, lengths=None, window=WINDOW, block=BLOCK):
    """Band slices of a mask by its name; lengths: of the documents, where the mask has some."""
    if name not in MASKS:
        raise SystemExit(f"mask is {name}; allowed: {', '.join(MASKS)}")
    if name == "full":
        return [(0, length, 0, length, -INFINITE, INFINITE)]
    if name == "causal":
        return [(0, length, 0, length, -INFINITE, 0)]
    if name == "window":
        return [(0, length, 0, length, 1 - window, 0)]
    if name == "prefix_tree":
        return tree_slices(prefix_tree(length))
    if name == "share_question":
        return share_question(lengths)
    if name == "global_window":
        return global_window(length, window)
    if name == "video_blocks":  # two videos; blocks of frames see those before them
        first = length * 5 // 8
        lengths, block = [first, length - first], max(1, min(VIDEO_BLOCK, first // 2))
    slices, start = [], 0
    for size in lengths:
        end = start + size
        if name == "varlen_full":
            slices.append((start, end, start, end, -INFINITE, INFINITE))
        elif name == "varlen_causal":
            slices.append((start, end, start, end, -INFINITE, 0))
        else:
            for q0 in range(start, end, block):
                q1 = min(q0 + block, end)
                slices.append((q0, q1, start, q1, -INFINITE, INFINITE))
        start = end
    return slices


def prefix_tree(length, seed=SEED):
    """Nodes (parent or -1, rows) of packed trees, a parent before its children: up to six nodes
    deep, 2 to 4 children, 64 to length / 8 rows, half as many at most with each step down.
    """
    draw = random.Random(seed)
    nodes, left = [], length

    def grow(parent, depth):
        nonlocal left
        most = max(TREE_LEAST_ROWS, length // 8 >> depth)
        rows = min(left, round(TREE_LEAST_ROWS * (most / TREE_LEAST_ROWS) ** draw.random()))
        if rows == 0:
            return
        left -= rows
        nodes.append((parent, rows))
        own = len(nodes) - 1
        if depth + 1 < TREE_DEPTH:
            for _ in range(draw.randint(2, 4)):
                grow(own, depth + 1)

    while left:
        grow(-1, 0)
    return nodes


def tree_slices(nodes):
    """A node sees its ancestors in full and itself causally; neighbouring ancestors are one."""
    slices, paths, start = [], [], 0
    for parent, rows in nodes:
        end = start + rows
        path = list(paths[parent]) if parent >= 0 else []
        if path and path[-1][1] == start:
            path[-1] = (path[-1][0], end)
        else:
            path.append((start, end))
        paths.append(path)
        slices += [(start, end, *keys, -INFINITE, INFINITE) for keys in path[:-1]]
        slices.append((start, end, *path[-1], -INFINITE, 0))
        start = end
    return slices


def share_question(lengths, seed=SEED):
    """A third of each document is a question, the rest 2 to 6 answers of about equal length: each
    sees the question in full and itself causally, so its rows are in two slices.
    """
    draw = random.Random(seed)
    slices, start = [], 0
    for length in lengths:
        question = (start, start + max(1, length // 3))
        slices.append((*question, *question, -INFINITE, 0))
        rest, answers = start + length - question[1], draw.randint(2, 6)
        for i in range(answers):
            rows = [question[1] + rest * part // answers for part in (i, i + 1)]
            if rows[0] < rows[1]:
                slices.append((*rows, *question, -INFINITE, INFINITE))
                slices.append((*rows, *rows, -INFINITE, 0))
        start += length
    return slices


def global_window(length, window=WINDOW, rows=GLOBAL_ROWS):
    """The first rows see all keys and all rows see their keys, the others a causal window too."""
    return [
        (0, rows, 0, length, -INFINITE, INFINITE),
        (rows, length, 0, rows, -INFINITE, INFINITE),
        (rows, length, rows, length, 1 - window, 0),
    ]


def with_types(slices):
    """The same pairs in slices whose diagonals end at their corners, as ranges with types say."""
    typed = []
    for q0, q1, k0, k1, d_min, d_max in slices:
        rows = k0 - d_min - q0  # that see the first key
        if d_min == -INFINITE or rows >= q1 - q0:
            typed.append((q0, q1, k0, k1, d_min if rows == 0 else -INFINITE, d_max))
            continue
        typed.append((q0, q0 + rows, k0, q0 + rows + d_max, -INFINITE, d_max))
        typed.append((q0 + rows, q1, k0, k1, d_min, d_max))
    return typed


def area(slices):
    """Visible pairs; one in several slices counts several times."""
    total = 0
    for q0, q1, k0, k1, d_min, d_max in slices:
        if d_min == -INFINITE and d_max == INFINITE:
            total += (q1 - q0) * (k1 - k0)
            continue
        for row in range(q0, q1):
            total += max(0, min(k1, row + d_max + 1) - max(k0, row + d_min))
    return total


def main():
    if len(sys.argv) < 3:
        raise SystemExit("arguments: OUT NAME:ROWS...")
    masks = {}
    for text in sys.argv[2:]:
        name, rows = text.split(":")
        lengths = documents(DATA, int(rows), 0) if name in OF_DOCUMENTS else None
        slices = with_types(mask_slices(name, int(rows), lengths))
        masks[f"{name}.{int(rows) // 1024}k"] = {"rows": int(rows), "slices": slices}
    pathlib.Path(sys.argv[1]).write_text(json.dumps(masks))


if __name__ == "__main__":
    main()
