// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "bounds/bounds.hpp"
#include "bounds/priced_chunks.hpp"

namespace magi::cli {

/// Prices that prove many rows, by a deflected subgradient walk over tables of rising fineness, in
/// at most `work` cells. Starts from what each chunk costs in `placement`, whose rows are `known`:
/// no proof exceeds them. No proof where the work does not suffice for coarse tables.
PriceProof search_prices(const PricedChunks& chunks, const Placement& placement, std::int64_t known,
                         std::int64_t work);

}  // namespace magi::cli
