# SPDX-License-Identifier: Apache-2.0
"""Draws what context parallelism is, of a plan, and memory by ranks: overview.py [FOLDER],
docs/pictures by default. Needs magi_attention.
"""

import html
import itertools
import json
import pathlib
import sys

from magi_attention import masks
from magi_attention.plan import Plan
from magi_attention.training import ModelShape, Training, causal_memory

PICTURES = pathlib.Path(__file__).resolve().parents[2] / "docs/pictures"
RANKS = ("#0072b2", "#e69f00", "#00946c", "#cc5a00")  # as magi show has them
INK, MUTED, PAPER = "#1f2933", "#616e7c", "#f3f5f8"
ON_RANKS = ("#fff", INK, "#fff", "#fff")
LEFT, WIDTH = 24, 712
COLUMN, GAP, BOX = 178, 18, 160  # of a rank
BOUNDS = (0, 1400, 4096)
LLAMA_8B = ModelShape(32, 4096, 14336, 32, 8, 128, 128256)
SHARDS, TOKENS, GPU = 16, 262144, 76
# Parts of TrainingMemory under the names of the picture; the first takes all others.
PARTS = {
    "weights, gradients, optimizer": ("#0072b2", ()),
    "inputs of layers": ("#56b4e9", ("inputs of layers",)),
    "saved attention": ("#009e73", ("saved attention",)),
    "layer at work": ("#e69f00", ("layer at work", "sums of attention")),
    "loss": ("#cc79a7", ("logits",)),
}


def text(x, y, words, size=12, colour=INK, anchor="start", weight="normal"):
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{html.escape(words)}</text>'
    )


def rect(x, y, width, height, fill, title=""):
    shown = f"<title>{html.escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{fill}">'
        f"{shown}</rect>"
    )


def picture(title, about, height, parts):
    width = 2 * LEFT + WIDTH
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">'
        f"<title>{title}</title>{rect(0, 0, width, height, '#fff')}"
    )
    lines = [head, text(LEFT, 28, title, 16, weight="600"), text(LEFT, 47, about, colour=MUTED)]
    return "\n".join([*lines, *parts, "</svg>\n"])


def step(number, y, words):
    """A numbered line above what it says, legible on curves."""
    line = text(LEFT, y, f"{number}  {words}", 13, weight="600")
    return line.replace("<text", '<text stroke="#fff" stroke-width="5" paint-order="stroke"')


def sequence(placement):
    """Documents over chunks in the colours of their ranks, and an axis."""
    rows, chunk = placement["num_rows"], placement["chunk_size"]
    scale, parts = WIDTH / rows, []
    for number, (begin, end) in enumerate(itertools.pairwise(BOUNDS), 1):
        x, right = LEFT + begin * scale + 1, LEFT + end * scale - 1
        parts.append(f'<path d="M{x:.1f} 104v-6H{right:.1f}v6" fill="none" stroke="{MUTED}"/>')
        parts.append(text((x + right) / 2, 94, f"document {number}", anchor="middle"))
    for number, rank in enumerate(placement["chunk_rank"]):
        parts.append(rect(LEFT + number * chunk * scale, 108, chunk * scale - 1, 26, RANKS[rank]))
    for row in range(0, rows - 500, 1000):
        anchor = "middle" if row else "start"
        parts.append(text(LEFT + row * scale, 149, f"{row:,}", 11, MUTED, anchor))
    return [*parts, text(LEFT + WIDTH, 149, f"row {rows:,}", 11, MUTED, "end")]


def exchanged(plan):
    """Key rows that a rank gets of another: {receiver: {sender: rows}}."""
    found = {rank: {} for rank in range(plan.cp_size)}
    for sender, receiver, *_, rows in json.loads(plan.to_json())["transfers"]:
        if sender != receiver:
            found[receiver][sender] = found[receiver].get(sender, 0) + rows
    return {rank: dict(sorted(senders.items())) for rank, senders in found.items()}


def context_parallel():
    """Three steps: rows are held, keys travel, each rank attends."""
    mask = masks.from_cu_seqlens(list(BOUNDS))
    plan = Plan.from_mask(
        mask, cp_size=4, num_heads_q=32, num_heads_kv=8, head_dim=128, work="keys"
    )
    got, parts = exchanged(plan), [step(1, 72, "The rows of one sequence are dealt out to ranks")]
    parts += sequence(json.loads(plan.to_json())["placement_q"])
    parts.append(step(3, 386, "Each rank attends: its queries to its own and the received keys"))
    scale = BOX / max(sum(senders.values()) for senders in got.values())
    for rank, senders in got.items():
        x = LEFT + rank * COLUMN
        parts.append(rect(x, 170, BOX, 58, RANKS[rank]))
        parts.append(text(x + BOX / 2, 194, f"rank {rank}", 14, ON_RANKS[rank], "middle", "600"))
        parts.append(text(x + BOX / 2, 214, f"q, k, v of {plan.rows_of(rank):,} rows", 12,
                          ON_RANKS[rank], "middle"))  # fmt: skip
        at = x
        for sender, rows in senders.items():
            width, start = rows * scale, LEFT + sender * COLUMN + BOX * (rank + 0.5) / len(got)
            parts.append(
                f'<path d="M{start:.1f} 228C{start:.1f} 296 {at + width / 2:.1f} 250 '
                f'{at + width / 2:.1f} 318" fill="none" stroke="{RANKS[sender]}" '
                f'stroke-width="{max(1.5, rows / 150):.1f}" stroke-opacity="0.7"/>'
            )
            told = f"{rows:,} rows of rank {sender}"
            parts.append(rect(at, 318, width - 1, 24, RANKS[sender], told))
            if width > 26:
                parts.append(text(at + width / 2, 334, f"{rows:,}", 11, ON_RANKS[sender], "middle"))
            at += width
        parts.append(text(x, 358, f"k, v of {sum(senders.values()):,} rows", 12, MUTED))
        parts.append(rect(x, 398, BOX, 40, PAPER))
        parts.append(rect(x, 398, 5, 40, RANKS[rank]))
        parts.append(text(x + BOX / 2, 422, f"out of {plan.rows_of(rank):,} rows", 12, INK,
                          "middle"))  # fmt: skip
    parts.append(step(2, 262, "Keys and values travel, once, to the ranks whose queries see them"))
    sent = sum(sum(senders.values()) for senders in got.values())
    everyone = 3 * sum(plan.rows_of(rank) for rank in got)
    about = (
        f"Two causal documents on four ranks: {sent:,} rows of keys travel, where a ring or an "
        f"all-gather sends {everyone:,}"
    )
    return picture("What context parallelism is", about, 452, parts)


def memory():
    """Bars by the number of ranks that share a sequence."""
    training = Training(keeps="attention", loss_rows=4096, shards=SHARDS)
    left, top, lane, most = 100, 96, 34, 200
    scale = (WIDTH + LEFT - left) / most
    parts, x = [], LEFT
    for name, (colour, _) in PARTS.items():
        parts += [rect(x, 62, 12, 12, colour), text(x + 17, 72, name)]
        x += 32 + 6.6 * len(name)
    for gib in range(0, most + 1, 25):
        at = left + gib * scale
        parts.append(f'<path d="M{at:.1f} {top - 4}V{top + 5 * lane}" stroke="#cbd2d9"/>')
        words = f"{gib} GiB" if gib == most else f"{gib}"
        parts.append(text(at, top + 5 * lane + 16, words, 12, MUTED, "middle"))
    for number, ranks in enumerate((1, 2, 4, 8, 16)):
        y, at = top + number * lane, left
        held = causal_memory(LLAMA_8B, training, TOKENS, cp_size=ranks)
        sizes = {name: sum(held.parts.get(part, 0) for part in some)
                 for name, (_, some) in PARTS.items()}  # fmt: skip
        sizes[next(iter(PARTS))] = held.peak - sum(sizes.values())
        parts.append(text(left - 8, y + 17, f"{ranks} rank" + "s" * (ranks > 1), anchor="end"))
        for name, size in sizes.items():
            width = size / 2**30 * scale
            parts.append(rect(at, y, width, lane - 10, PARTS[name][0],
                              f"{name}: {size / 2**30:.1f} GiB"))  # fmt: skip
            at += width
        if at + 66 > LEFT + WIDTH:  # no room beside the bar
            parts.append(text(at - 6, y + 17, f"{held.peak / 2**30:.1f} GiB", 12, INK, "end"))
        else:
            parts.append(text(at + 6, y + 17, f"{held.peak / 2**30:.1f} GiB"))
    limit = left + GPU * scale
    parts.append(f'<path d="M{limit:.1f} {top - 8}V{top + 5 * lane}" stroke="{INK}" '
                 'stroke-dasharray="5 4"/>')  # fmt: skip
    parts.append(text(limit + 6, top + 5 * lane - 4, f"{GPU} GiB of a GPU with 80 GB", 11))
    about = (
        f"Llama-8B, {TOKENS:,} tokens of one causal document, {SHARDS} GPUs with FSDP2, "
        "attention is kept; as magi memory predicts"
    )
    return picture("Memory of a GPU by ranks that share a sequence", about, top + 200, parts)


def drawn():
    """SVG texts by file name."""
    return {"context_parallel.svg": context_parallel(), "memory.svg": memory()}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    for name, svg in drawn().items():
        (folder / name).write_text(svg, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
