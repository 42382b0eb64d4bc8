# SPDX-License-Identifier: Apache-2.0
"""Masks from the descriptions that programs have, and back, exactly.

    mask = masks.from_flashmask(startend_row_indices)
    plan = Plan.from_mask(mask, cp_size=4, ...)

from_X makes a Mask of a description, as few slices as rows that follow each other come to; to_X is
its inverse. A description that cannot tell the mask is a ValueError that names the first row which
it cannot. Masks by bounds, ids, trees, columns or intervals are compared by intervals, whatever the
length; matrices and functions of pairs are asked for every pair.
"""

from magi_attention.masks._blocks import from_blocks, to_blocks
from magi_attention.masks._dense import (
    from_block_mask,
    from_mask_mod,
    from_matrix,
    to_block_mask,
    to_mask_mod,
    to_matrix,
)
from magi_attention.masks._documents import (
    from_cu_seqlens,
    from_document_ids,
    from_packed_seq_params,
    from_prefix_lm,
    from_window,
    to_cu_seqlens,
    to_document_ids,
    to_packed_seq_params,
    to_prefix_lm,
    to_window,
)
from magi_attention.masks._files import load, save
from magi_attention.masks._intervals import (
    from_flashmask,
    from_interval_ends,
    to_flashmask,
    to_interval_ends,
)
from magi_attention.masks._mask import Mask, from_intervals, from_ranges
from magi_attention.masks._tree import TokenTree, from_token_ids, from_tree, to_tree
from magi_attention.masks._video import from_video, video_blocks

__all__ = [
    "Mask", "TokenTree", "from_block_mask", "from_blocks", "from_cu_seqlens", "from_document_ids",
    "from_flashmask", "from_interval_ends", "from_intervals", "from_mask_mod", "from_matrix",
    "from_packed_seq_params", "from_prefix_lm", "from_ranges", "from_token_ids", "from_tree",
    "from_video", "from_window", "load", "save", "to_block_mask", "to_blocks", "to_cu_seqlens",
    "to_document_ids", "to_flashmask", "to_interval_ends", "to_mask_mod", "to_matrix",
    "to_packed_seq_params", "to_prefix_lm", "to_tree", "to_window", "video_blocks",
]  # fmt: skip
