// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "magi/mask.hpp"

// The masks that the kernels are measured on.
namespace magi::cli {

/// "full", "causal", "varlen_full", "varlen_causal", "window", "block_causal".
const std::vector<std::string>& bench_mask_names();

/// Powers of two that have recorded documents, ascending.
std::vector<std::int32_t> bench_lengths();

/// Lengths of the packed documents of `rows` rows: draw 0 of bench/data/document_draws.json, for
/// half its shortest length the halves of that draw.
std::vector<std::int32_t> bench_documents(std::int32_t rows);

/// Documents are causal or full; the window holds 1,024 keys; blocks have 2,048 queries.
Mask bench_mask(std::string_view name, std::int32_t rows);

/// The masks that attention over ranks is measured on: "full", "causal", "varlen_full",
/// "varlen_causal", "window", "varlen_block_causal", "prefix_tree", "video_blocks" (two videos, in
/// which blocks of frames see those before them).
const std::vector<std::string>& dist_mask_names();

/// The mask of a whole sequence, as in `bench/dist_attention.py`. Below 2,048 rows, which is for
/// tests, documents are those of 2,048 rows and window and blocks those above, all scaled. Throws
/// InvalidArgument for a length without recorded documents where the mask has some.
Mask dist_mask(std::string_view name, std::int32_t rows);

}  // namespace magi::cli
