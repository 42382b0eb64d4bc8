// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/placement/chunk_table.hpp"

namespace magi {

/// Exact key cost where each chunk sees one range and both ends rise with the chunk: packed
/// documents (causal, full, block causal, prefix) and windows. The keys of a rank then number
///   sum over its chunks, ascending, of max(0, hi - max(lo, hi of the chunk before)),
/// so that a chunk's share depends on its two neighbours alone.
class MonotoneKeys {
 public:
  /// Absent when the mask has another form, or when a rank could hold a row that its chunk does not
  /// see but another chunk does (own rows would then not be a constant).
  static std::optional<MonotoneKeys> from(const ChunkTable& table);

  /// Work of a visit of a chunk in a pair, relative to other key models.
  std::int64_t visit_cost() const { return 1; }
  std::int32_t num_chunks() const { return static_cast<std::int32_t>(lo_.size()); }

  /// Every chunk sees the keys from row 0 to its own end: one causal document.
  bool is_one_causal_document(const ChunkTable& table) const;

  /// The rows that the chunk adds to a rank that holds `chunks` (ascending, without it), in remote
  /// rows up to a constant of the chunk.
  std::int32_t cost_of_adding(std::int32_t chunk, std::span<const std::int32_t> chunks) const;

  /// Remote rows summed over ranks, for chunk -> rank.
  std::int64_t remote_rows(std::span<const std::int32_t> rank_of, std::int32_t num_ranks) const;

  /// Two ranks side by side: what moving single chunks between them changes.
  class Pair {
   public:
    /// Both lists ascend. Fills gain_x[a]: change of remote rows when x[a] moves to y; gain_y
    /// alike.
    void load(const MonotoneKeys& keys, std::span<const std::int32_t> x,
              std::span<const std::int32_t> y);
    std::span<const std::int32_t> gain_x() const { return {gain_x_.data(), num_x_}; }
    std::span<const std::int32_t> gain_y() const { return {gain_y_.data(), num_y_}; }
    /// Exact change when x[a] and y[b] change places; never less than gain_x[a] + gain_y[b].
    std::int64_t swap(std::size_t a, std::size_t b) const;

   private:
    /// Key ranges of one rank; entry 0 and the last are empty sentinels.
    struct Side {
      std::vector<std::int32_t> lo;
      std::vector<std::int32_t> hi;
      std::vector<std::int32_t> rank;  // of each chunk in the other list: how many lie before it
    };
    static void copy(const MonotoneKeys& keys, std::span<const std::int32_t> chunks, Side& side);
    static void count_before(std::span<const std::int32_t> of, std::span<const std::int32_t> in,
                             Side& side);
    static void fill_gains(const Side& from, const Side& to, std::vector<std::int32_t>& gain);
    static std::int32_t exchange(const Side& from, const Side& to, std::size_t a, std::size_t b);

    Side x_;
    Side y_;
    std::size_t num_x_ = 0;
    std::size_t num_y_ = 0;
    std::vector<std::int32_t> gain_x_;
    std::vector<std::int32_t> gain_y_;
  };

 private:
  /// Keys that a chunk [lo, hi) adds between a chunk that ends at hi_before and [lo_next, hi_next).
  static std::int32_t share(std::int32_t hi_before, std::int32_t lo, std::int32_t hi,
                            std::int32_t lo_next, std::int32_t hi_next) {
    const std::int32_t own = std::max(0, hi - std::max(lo, hi_before));
    return own + std::max(0, hi_next - std::max(lo_next, hi)) -
           std::max(0, hi_next - std::max(lo_next, hi_before));
  }

  std::vector<std::int32_t> lo_;
  std::vector<std::int32_t> hi_;
  std::int64_t own_rows_ = 0;  // visible rows that their own rank holds, whatever the placement
};

}  // namespace magi
