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

}  // namespace magi::cli
