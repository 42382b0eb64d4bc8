// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/mask.hpp"
#include "plan/tables/layout.hpp"

namespace magi::planner {

/// The slices that every rank computes and the keys that it lacks, in global coordinates.
struct Needs {
  std::vector<BandSlice> cuts;            ///< shrunk parts of the slices, grouped by query run
  std::vector<std::size_t> run_begin;     ///< [runs + 1] into cuts
  std::vector<Range> remote;              ///< key rows a rank needs and lacks, ascending, disjoint
  std::vector<std::size_t> rank_begin;    ///< [num_ranks + 1] into remote
  std::vector<std::int32_t> remote_rows;  ///< [num_ranks]

  std::span<const BandSlice> cuts_of_run(std::int32_t run) const {
    const auto r = static_cast<std::size_t>(run);
    return {cuts.data() + run_begin[r], run_begin[r + 1] - run_begin[r]};
  }
  std::span<const Range> remote_of(std::int32_t rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return {remote.data() + rank_begin[r], rank_begin[r + 1] - rank_begin[r]};
  }
};

/// One sweep over the query runs with the slices sorted once: O(sort + cuts log cuts + runs).
Needs find_needs(const Mask& mask, const Layout& layout_q, const Layout& layout_k);

/// Appends `rows` less the rank's own ones to `missing`. `own` is a position in `own_runs` (those
/// of the rank in `layout`) that moves along as rows ascend from call to call. Returns rows added.
std::int32_t append_missing(Range rows, std::span<const std::int32_t> own_runs,
                            const Layout& layout, std::size_t& own, std::vector<Range>& missing);

}  // namespace magi::planner
