// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

namespace magi::cli {

/// Proof that no placement moves fewer rows: a price for each chunk of query rows. A rank that
/// holds some chunks has to fetch rows for them; the least of (rows fetched - prices of its chunks)
/// over all sets that a rank may hold, times the ranks, plus all prices, is at most what any
/// placement fetches. docs/bounds.md has the argument.
struct PriceProof {
  std::int32_t area_steps = 0;  ///< area is counted in parts of the largest rank's; 0: no proof
  std::vector<std::int32_t> prices;  ///< [num_chunks] in key rows, of either sign
  friend bool operator==(const PriceProof&, const PriceProof&) = default;
};

/// Lower bounds that hold for every plan of a mask. "Within the plan's limits": the same chunks, no
/// rank with more chunks or a larger area than the plan's largest. All are for plans that move keys
/// alone: one that moves queries may be below.
struct PlanBounds {
  std::int64_t rows = 0;   ///< key rows received in a forward pass, any placement within the limits
  std::int64_t bytes = 0;  ///< the same rows in bytes
  std::int64_t contiguous_bytes = 0;  ///< every rank holds one run of chunks, whatever its area
  std::int64_t layout_bytes = 0;      ///< this plan's placements
  double balance = 1.0;               ///< largest area over mean area, by counts of chunks alone
  double forward_seconds = 0.0;       ///< predicted time of the slowest rank, without latencies
  double backward_seconds = 0.0;
  friend bool operator==(const PlanBounds&, const PlanBounds&) = default;
};

struct BoundSearch {
  /// Cells of the tables that the search for prices fills; about 1e9 a second on one core. 0: no
  /// search.
  std::int64_t work = std::int64_t{1} << 31;
};

/// Lower bounds of a plan whose placement is sound. A pure function of the plan and the work, but
/// for the last digits of floating point, in which prices may differ between machines; what they
/// prove is counted in integers. Throws InvalidArgument for negative work.
PlanBounds find_bounds(const Plan& plan, const BoundSearch& search = {});

}  // namespace magi::cli
