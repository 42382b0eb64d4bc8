# SPDX-License-Identifier: Apache-2.0
"""Masks of videos, against every pair of tokens by their definition."""

import itertools
import runpy
from types import SimpleNamespace

import pytest
import torch

from magi_attention import masks
from magi_attention.functional import block_sparse_attn_func
from ranks import over
from test_docs import ROOT, blocks
from test_masks import check

CASES = 15  # for each of the three seeds of rng


def seen_along(one, other, length, tile, window, edges) -> bool:
    """Whether a token at `one` sees that at `other` along an axis."""
    one, other, count = one // tile, other // tile, -(-length // tile)
    if window is None:
        return True
    if edges == "whole":
        if window >= count:
            return True
        one = min(max(one, window // 2), count - 1 - window // 2)
    return abs(one - other) <= window // 2


def in_chunk(one, other, chunk, window) -> bool:
    return 0 <= one // chunk - other // chunk < (window or 1 << 30)


def is_radial(one, other, height, width) -> bool:
    size, distance = height * width, abs(one[0] - other[0])
    doublings = 2 ** (max(distance, 1).bit_length() - 1)
    apart = abs((one[1] - other[1]) * width + one[2] - other[2])
    if doublings > size:
        return apart == 0 and distance % -(-doublings // size) == 0
    return apart * doublings <= size


def wanted_of(sizes, window, tile=(1, 1, 1), text=0, text_first=True, text_sees=None, chunk=None,
              edges="whole"):  # fmt: skip
    """bool [tokens, tokens] by the definition."""
    places = list(itertools.product(*map(range, sizes)))
    seen = torch.ones(text + len(places), text + len(places), dtype=torch.bool)
    begin = text if text_first else 0
    for i, one in enumerate(places):
        for j, other in enumerate(places):
            sides = window if isinstance(window, tuple) else (None, None, None)
            along = [
                seen_along(one[a], other[a], sizes[a], tile[a], sides[a], edges)
                for a in range(1 if chunk else 0, 3)
            ]
            is_seen = all(along) and (not chunk or in_chunk(one[0], other[0], chunk, sides[0]))
            if window == "radial":
                is_seen = is_seen and is_radial(one, other, *sizes[1:])
            seen[begin + i, begin + j] = is_seen
    if (text_sees or ("text" if chunk else "all")) == "text":
        of_text = slice(0, text) if text_first else slice(len(places), None)
        of_video = slice(begin, begin + len(places))
        seen[of_text, of_video] = False
    return seen


def case_of(rng):
    sizes = tuple(rng.randint(1, n) for n in (6, 4, 4))
    window = rng.choice(
        ("radial", None, *[tuple(rng.choice((None, 1, 3, 5)) for _ in range(3))] * 6)
    )
    tile = (1, 1, 1)
    if window != "radial" and rng.random() < 0.6:
        tile = tuple(rng.randint(1, 3) for _ in range(3))
    chunk = tile[0] * rng.randint(1, 2) if rng.random() < 0.4 else None
    if chunk and isinstance(window, tuple) and rng.random() < 0.5:
        window = (2, *window[1:])  # chunks may be even
    given = dict(window=window, tile=tile, text=rng.choice((0, 1, 4)), chunk=chunk)
    given.update(text_first=rng.random() < 0.5, edges=rng.choice(("whole", "cut")))
    return sizes, given | dict(text_sees=rng.choice((None, "all", "text")))


def test_masks_by_every_pair(rng):
    for case in range(CASES):
        sizes, given = case_of(rng)
        mask, order = masks.from_video(*sizes, **given)
        assert torch.equal(order.sort().values, torch.arange(mask.rows_q)), case
        wanted = wanted_of(sizes, **given)[order][:, order]
        check(mask, wanted, f"{case}: {sizes} {given}")


def test_radial_frames_beyond_their_places():
    """More frames than places in one: far frames see equal places, each some frames apart."""
    mask, order = masks.from_video(19, 1, 2, window="radial")
    assert torch.equal(order, torch.arange(38))
    check(mask, wanted_of((19, 1, 2), "radial"), "radial")


def test_blocks_cover_and_tell(rng):
    for case in range(CASES):
        sizes, given = case_of(rng)
        mask, _ = masks.from_video(*sizes, **given)
        size_q, size_k = rng.randint(1, 7), rng.randint(1, 7)
        blocks = masks.to_blocks(mask, size_q, size_k, cover=True)
        seen = masks.to_matrix(mask)
        for i, j in itertools.product(range(len(blocks)), range(blocks.shape[1])):
            part = seen[i * size_q : (i + 1) * size_q, j * size_k : (j + 1) * size_k]
            assert bool(blocks[i, j]) == bool(part.any()), case
        told = masks.from_blocks(blocks, size_q, size_k, mask.rows_q, mask.rows_k)
        assert torch.equal(masks.to_blocks(told, size_q, size_k), blocks), case
        if told == mask:
            assert torch.equal(masks.to_blocks(mask, size_q, size_k), blocks), case
        else:
            pattern = r"^row \d+ sees .* which blocks of .* cannot tell"
            with pytest.raises(ValueError, match=pattern):
                masks.to_blocks(mask, size_q, size_k)


def test_heads_with_windows_of_their_own():
    """Every head attends to what its window shows, as dense attention under the definition."""
    windows, sizes, tile = [(1, 3, 3), (3, 1, None)], (6, 4, 4), (2, 2, 2)
    blocks, order = masks.video_blocks(*sizes, windows=windows, tile=tile, text=5, block_size=8)
    assert blocks.shape == (2, 13, 13)
    q, k, v = (torch.randn(101, 2, 16, dtype=torch.float64) for _ in range(3))
    out, _ = block_sparse_attn_func(q[order], k[order], v[order], blocks, q_block_size=8,
                                    k_block_size=8)  # fmt: skip
    seen = torch.stack([wanted_of(sizes, w, tile, 5, text_first=False) for w in windows])
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    assert torch.allclose(out[order.argsort()], wanted.transpose(0, 1))


def test_few_slices():
    """110,000 tokens in tiles of 64: slices as many as rows of tiles see, whole axes joined."""
    sizes, tile = (28, 64, 64), (4, 4, 4)
    mask, _ = masks.from_video(*sizes, window=(5, 7, 9), tile=tile, text=256)
    assert mask.rows_q == 114_944 and len(mask.slices) < 7 * 16 * 5 * 7 * 9
    whole, _ = masks.from_video(*sizes, window=(None, 7, 9), tile=tile, text=256)
    assert len(whole.slices) < 16 * 7 * 9
    assert len(masks.from_video(*sizes, text=256)[0].slices) == 1


@pytest.mark.parametrize(
    "given, error, sentence",
    [
        (dict(window=(2, 3, 3)), ValueError, r"window\[0\] is 2; allowed: odd numbers, or None"),
        (dict(window=(3, 3)), ValueError, r"window is \(3, 3\); allowed: three numbers of tiles"),
        (dict(window="disc"), ValueError, r"window is 'disc'; allowed: three numbers of tiles"),
        (dict(window=7), ValueError, r"window is 7; allowed: three numbers of tiles"),
        (dict(window=(1, 1.5, 1)), TypeError, r"window\[1\] is 1\.5; allowed: an int"),
        (dict(tile=(1, 0, 1)), ValueError, r"tile\[1\] is 0; allowed: 1 or more"),
        (dict(tile=2), ValueError, r"tile is 2; allowed: three numbers of tokens"),
        (dict(tile=(2, 1, 1), chunk=3), ValueError, r"chunk is 3; allowed: multiples of tile\[0\]"),
        (dict(tile=(2, 1, 1), window="radial"), ValueError, r"tile is \(2, 1, 1\) beside a radial"),
        (dict(text=-1), ValueError, r"text is -1; allowed: 0 to"),
        (dict(text_sees="video"), ValueError, r"text_sees is 'video'; allowed: all, text"),
        (dict(edges="round"), ValueError, r"edges is 'round'; allowed: whole, cut"),
        (dict(frames=0), ValueError, r"frames is 0; allowed: 1 to"),
        (dict(frames=1 << 20), ValueError, r"frames \* height \* width \+ text is .*; allowed: up"),
        (dict(height=512, width=512, window=(9, 99, 99)), ValueError, r"window makes \d+ slices"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(given, error, sentence):
    sizes = [given.pop(name, 32) for name in ("frames", "height", "width")]
    with pytest.raises(error, match=sentence):
        masks.from_video(*sizes, **given)


def test_wrong_windows_of_heads_are_named():
    for windows, sentence in (
        ([(1, 1, 1), (2, 1, 1)], r"windows\[1\]\[0\] is 2"),
        ("radial", r"windows is 'radial'; allowed: a window for each head"),
        ([], r"windows is \[\]; allowed: a window for each head"),
    ):
        with pytest.raises(ValueError, match=sentence):
            masks.video_blocks(4, 4, 4, windows=windows, block_size=8, tile=(2, 2, 2))


@over(4)
def test_short_training(group):
    """examples/video has the losses of dense attention over ranks."""
    train = runpy.run_path(str(ROOT / "examples/video/train.py"))["train"]
    given = SimpleNamespace(size="2,8,8", steps=2)
    alone = torch.tensor(train(given, True))
    assert torch.allclose(torch.tensor(train(given, True, group)), alone, atol=1e-5)
    assert not torch.allclose(torch.tensor(train(given, False)), alone, atol=1e-4)


def test_examples_of_the_page():
    shown = {}
    for example in blocks("docs/video.md"):
        exec(example, shown)
    assert shown["mask"].rows_q == 114_944 and shown["blocks"].shape == (8, 1796, 1796)
