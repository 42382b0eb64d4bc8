# SPDX-License-Identifier: Apache-2.0
"""Masks of videos: windows and tiles over frames, lines and columns, beside a text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import MAX_ROWS, as_bool, check_choice, check_int
from magi_attention.masks._blocks import to_blocks
from magi_attention.masks._mask import Mask, compact, from_intervals

_AXES = ("frames", "height", "width")
_RADIAL = "radial"
_MAX_SLICES = 1 << 24
_FREE = 1 << 30  # a diagonal that bounds nothing

Window = Sequence[int | None] | str | None


class _Video(NamedTuple):
    """Values that all heads share; sizes and tile in tokens along frames, height and width."""

    sizes: tuple[int, int, int]
    tile: tuple[int, int, int]
    text: int
    text_first: bool
    text_sees: str
    chunk: int | None
    edges: str


class _Axis(NamedTuple):
    """Units along one axis: int64 [n], tokens of each, and the units [first, last) it sees."""

    tokens: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor

    @property
    def pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Units and the units that these see, side by side."""
        counts = self.last - self.first
        query = torch.repeat_interleave(counts)
        key = torch.arange(len(query), device="cpu") - (counts.cumsum(0) - counts)[query]
        return query, key + self.first[query]


def from_video(
    frames: int, height: int, width: int, *,
    window: Window = None,
    tile: Sequence[int] = (1, 1, 1),
    text: int = 0,
    text_first: bool = True,
    text_sees: str | None = None,
    chunk: int | None = None,
    edges: str = "whole",
) -> tuple[Mask, torch.Tensor]:  # fmt: skip
    """Makes the mask of a video of frames x height x width tokens, and of `text` tokens that all
    see; and order, int64 [rows]: row i of the mask is token order[i], where tokens are numbered
    text first (text_first) or last, and those of the video by frames, lines and columns. Tokens of
    a tile lie together, axes in the order that makes the fewest slices: x[order] are rows, and
    rows[order.argsort()] tokens.

    window: (t, h, w), odd numbers of tiles, of `tile` = (t, h, w) tokens each, the last ones maybe
    shorter: a token sees those of the tiles around its own; None, for an axis or for all: every
    tile. edges: a window at an edge of the video is moved inside and stays "whole", or is "cut".
    "radial": tokens of frames d apart see each other where their places in the frame, y * width
    + x, are at most s / 2^r apart, s = height * width, r = floor(log2(max(d, 1))); where 2^r
    exceeds s, equal places in frames whose distance ceil(2^r / s) divides.

    chunk: frames of a chunk, a multiple of tile[0]: a token sees no frame of a later chunk, and
    window[0] counts chunks, its own and earlier ones. text_sees: "all", or "text" alone; None: all,
    but text alone where chunk is given, so that it tells of no later frame.

    ValueError or TypeError names a wrong argument, also where the mask has above 2^24 slices.
    """
    video = _check((frames, height, width), tile, text, text_first, text_sees, chunk, edges)
    return _made(video, _check_window("window", window, video))


def video_blocks(
    frames: int, height: int, width: int, *,
    windows: Sequence[Window],
    block_size: int,
    cover: bool = False,
    tile: Sequence[int] = (1, 1, 1),
    text: int = 0,
    text_first: bool = False,
    text_sees: str | None = None,
    chunk: int | None = None,
    edges: str = "whole",
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Makes bool [heads, blocks, blocks], the block mask of each head by its window, as
    block_sparse_attn_func takes it with blocks of block_size rows; and the order of tokens for all
    heads. Arguments are those of from_video. Blocks tell the masks exactly where they are tiles:
    the tile divides the video and has block_size tokens, or divisors of them along whole axes, and
    the text comes last. ValueError where they do not, unless cover: then a block is seen where any
    pair of it is.
    """
    video = _check((frames, height, width), tile, text, text_first, text_sees, chunk, edges)
    if isinstance(windows, str) or not len(windows):
        raise ValueError(f"windows is {windows!r}; allowed: a window for each head")
    blocks: dict[tuple | None, torch.Tensor] = {}
    shown = [_check_window(f"windows[{i}]", window, video) for i, window in enumerate(windows)]
    for window in dict.fromkeys(shown):
        mask, order = _made(video, window, [(0, 1, 2)])
        blocks[window] = to_blocks(mask, block_size, block_size, cover)
    return torch.stack([blocks[window] for window in shown]), order


def _check(sizes, tile, text, text_first, text_sees, chunk, edges) -> _Video:
    sizes = tuple(check_int(name, size, 1, MAX_ROWS) for name, size in zip(_AXES, sizes))
    tile = _three("tile", tile, "tokens")
    tile = tuple(check_int(f"tile[{i}]", size, 1) for i, size in enumerate(tile))
    rows = sizes[0] * sizes[1] * sizes[2] + check_int("text", text, 0, MAX_ROWS)
    if rows > MAX_ROWS:
        raise ValueError(f"frames * height * width + text is {rows}; allowed: up to {MAX_ROWS}")
    if chunk is not None and check_int("chunk", chunk, 1) % tile[0]:
        raise ValueError(f"chunk is {chunk}; allowed: multiples of tile[0], {tile[0]}")
    if text_sees is None:
        text_sees = "all" if chunk is None else "text"
    check_choice("text_sees", text_sees, ("all", "text"))
    check_choice("edges", edges, ("whole", "cut"))
    return _Video(sizes, tile, text, as_bool("text_first", text_first), text_sees, chunk, edges)


def _three(name: str, value: Any, what: str) -> tuple:
    try:
        found = tuple(value)
    except TypeError:
        found = ()
    if len(found) != 3 or isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; allowed: three numbers of {what}, (t, h, w)")
    return found


def _check_window(name: str, window: Window, video: _Video) -> tuple[int | None, ...] | None:
    """The window along each axis; None: radial."""
    if isinstance(window, str) and window == _RADIAL:
        if video.tile != (1, 1, 1):
            raise ValueError(f"tile is {video.tile} beside a radial window; allowed: (1, 1, 1)")
        return None
    if window is None:
        return (None, None, None)
    sides = _three(name, window, "tiles")
    for axis, size in enumerate(sides):
        if size is None:
            continue
        is_odd = check_int(f"{name}[{axis}]", size, 1) % 2
        if not is_odd and (axis or video.chunk is None):
            raise ValueError(f"{name}[{axis}] is {size}; allowed: odd numbers, or None for all")
    return sides


def _made(
    video: _Video, window: tuple[int | None, ...] | None, axis_orders: list | None = None
) -> tuple[Mask, torch.Tensor]:
    if window is None:
        axes = [_axis(video, 0, None), *(_axis(video, axis, None) for axis in (1, 2))]
        order, bands, is_line = (0, 1, 2), _radial(axes[0], video.sizes[1] * video.sizes[2]), False
    else:
        axes = [_axis(video, axis, window[axis]) for axis in range(3)]
        orders = axis_orders or list(itertools.permutations(range(3)))
        order = min(orders, key=lambda one: _num_slices([axes[axis] for axis in one]))
        bands, is_line = _bands([axes[axis] for axis in order])
    mask = _with_text(bands, video)
    return compact(mask) if is_line else mask, _tokens(axes, order, video)


def _axis(video: _Video, axis: int, window: int | None) -> _Axis:
    length, tile = video.sizes[axis], video.tile[axis]
    count = -(-length // tile)
    unit = torch.arange(count, device="cpu")
    tokens = (length - unit * tile).clamp(max=tile)
    if axis == 0 and video.chunk is not None:
        units = video.chunk // tile
        chunk, reach = unit // units, count if window is None else window
        return _Axis(
            tokens,
            (chunk - reach + 1).clamp(min=0) * units,
            (chunk * units + units).clamp(max=count),
        )
    if window is None or (window >= count and video.edges == "whole"):
        return _Axis(tokens, unit * 0, unit * 0 + count)
    last = unit + window // 2 + 1
    first = last - window
    if video.edges == "whole":
        first = first.clamp(0, count - window)
        return _Axis(tokens, first, first + window)
    return _Axis(tokens, first.clamp(min=0), last.clamp(max=count))


def _collapsed(axes: list[_Axis]) -> list[_Axis]:
    """The same with axes that are seen as a whole, from the last on, in units of those before."""
    found = list(axes)
    while len(found) > 1 and bool((found[-1].last - found[-1].first == len(found[-1].last)).all()):
        whole = int(found.pop().tokens.sum())
        found[-1] = found[-1]._replace(tokens=found[-1].tokens * whole)
    return found


def _pieces(axis: _Axis, is_thin: bool) -> torch.Tensor:
    """int64 [n, 6]: slices of a line of units, in tokens; is_thin: units are single tokens."""
    runs = torch.stack((axis.first, axis.last), 1)
    if is_thin:
        return from_intervals(torch.arange(len(runs) + 1, device="cpu"), runs, len(runs)).slices
    runs, counts = torch.unique_consecutive(runs, dim=0, return_counts=True)
    ends = torch.nn.functional.pad(axis.tokens.cumsum(0), (1, 0))
    units = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    free = torch.full_like(counts, _FREE)
    places = ends[units[:-1]], ends[units[1:]], ends[runs[:, 0]], ends[runs[:, 1]]
    return torch.stack((*places, -free, free), 1)


def _is_thin(axes: list[_Axis]) -> bool:
    return all(int(axis.tokens.max()) == 1 for axis in axes)


def _num_slices(axes: list[_Axis]) -> int:
    axes = _collapsed(axes)
    found = len(_pieces(axes[-1], _is_thin(axes)))
    for axis in axes[:-1]:
        found *= int((axis.last - axis.first).sum())
    return found


def _bands(axes: list[_Axis]) -> tuple[torch.Tensor, bool]:
    """int64 [n, 6]: the slices of a video whose rows lie in the order of these axes, and whether
    one axis tells them.
    """
    if _num_slices(axes) > _MAX_SLICES:
        raise ValueError(
            f"window makes {_num_slices(axes)} slices; allowed: up to {_MAX_SLICES}; try: a tile"
        )
    axes = _collapsed(axes)
    *outer, inner = axes
    query = key = torch.zeros(1, dtype=torch.int64, device="cpu")
    tokens = torch.ones(1, dtype=torch.int64, device="cpu")
    for axis in outer:
        queries, keys = axis.pairs
        query = (query[:, None] * len(axis.tokens) + queries).flatten()
        key = (key[:, None] * len(axis.tokens) + keys).flatten()
        tokens = (tokens[:, None] * axis.tokens).flatten()
    lines = torch.nn.functional.pad((tokens * int(inner.tokens.sum())).cumsum(0), (1, 0))[:-1]
    pieces = _pieces(inner, _is_thin(axes))
    return _placed(pieces, (lines[query], tokens[query]), (lines[key], tokens[key])), not outer


def _placed(pieces: torch.Tensor, query: tuple, key: tuple) -> torch.Tensor:
    """Slices of a line, in each pair of lines: (first row, rows for one of the line) of each."""
    pieces = pieces.long()
    (q_first, q_rows), (k_first, k_rows) = query, key
    q = q_first[:, None, None] + q_rows[:, None, None] * pieces[:, :2]
    k = k_first[:, None, None] + k_rows[:, None, None] * pieces[:, 2:4]
    moved = (k_first - q_first)[:, None, None] + pieces[:, 4:]
    diagonals = torch.where(pieces[:, 4:].abs() < _FREE, moved, pieces[:, 4:])
    return torch.cat((q, k, diagonals), 2).flatten(0, 1)


def _radial(frames: _Axis, size: int) -> torch.Tensor:
    """int64 [n, 6]: the slices of frames of `size` tokens under radial decay."""
    query, key = frames.pairs
    distance = (query - key).abs()
    doublings = distance.clamp(min=1).double().log2().long()
    place, found = torch.arange(size, device="cpu"), []
    for power in range(int(doublings.max()) + 1):
        step, reach = -(-(1 << power) // size), size >> power
        of_power = (doublings == power) & (distance % step == 0)
        line = _Axis(
            place * 0 + 1, (place - reach).clamp(min=0), (place + reach + 1).clamp(max=size)
        )
        q_first, k_first = query[of_power] * size, key[of_power] * size
        once = torch.ones_like(q_first)
        found.append(_placed(_pieces(line, True), (q_first, once), (k_first, once)))
    return torch.cat(found)


def _with_text(bands: torch.Tensor, video: _Video) -> Mask:
    pixels = video.sizes[0] * video.sizes[1] * video.sizes[2]
    rows = pixels + video.text
    begin = video.text if video.text_first else 0  # of the video
    bands[:, :4] += begin
    first = 0 if video.text_first else pixels
    last = first + video.text
    if video.text:
        seen = (0, rows) if video.text_sees == "all" else (first, last)
        free = (-_FREE, _FREE)
        text = [(begin, begin + pixels, first, last, *free), (first, last, *seen, *free)]
        bands = torch.cat((bands, torch.tensor(text, device="cpu")))
    return Mask(MaskHandle.from_bands(bands.int().contiguous(), rows, rows))


def _tokens(axes: list[_Axis], order: tuple[int, ...], video: _Video) -> torch.Tensor:
    """int64 [rows]: the token of each row."""
    unit = torch.zeros(video.sizes, dtype=torch.int64, device="cpu")
    for axis in order:
        place = torch.arange(video.sizes[axis], device="cpu") // video.tile[axis]
        shape = [1, 1, 1]
        shape[axis] = -1
        unit = unit * len(axes[axis].tokens) + place.view(shape)
    of_video = unit.flatten().argsort(stable=True)
    text = torch.arange(video.text, device="cpu")
    if video.text_first:
        return torch.cat((text, of_video + video.text))
    return torch.cat((of_video, text + of_video.numel()))
