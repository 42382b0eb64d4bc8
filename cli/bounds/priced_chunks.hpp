// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bounds/bounds.hpp"
#include "plan/placement/chunk_table.hpp"

namespace magi::cli {

/// Chunks of query rows with what a rank that holds them must fetch at least. With its chunks in
/// ascending order that is the sum over them of
///   max(0, seen_end - max(seen_begin, the largest seen_end up to the chunk before)) - own_rows.
/// Each chunk counts with its last run of seen keys alone, and with none where that ends below an
/// earlier chunk's: exact for packed documents and windows, less than the truth for other masks.
struct PricedChunks {
  std::int32_t num_ranks = 1;
  std::int32_t min_chunks = 0;  ///< of a rank, where all others hold max_chunks
  std::int32_t max_chunks = 0;
  std::int64_t max_area = 0;
  std::int64_t num_keys = 0;
  std::vector<std::int64_t> area;
  std::vector<std::int32_t> seen_begin;
  std::vector<std::int32_t> seen_end;  ///< never falls
  std::vector<std::int32_t> own_rows;  ///< rows of the chunk that some chunk sees

  std::int32_t num_chunks() const { return static_cast<std::int32_t>(area.size()); }
  /// Prices between -max_price() and max_price() keep all sums inside int32; 0 where rows or chunks
  /// are too many for any price.
  std::int32_t max_price() const;
  /// Steps of area in a table of moderate size; 0 where chunks are too many for any table.
  std::int32_t max_area_steps() const;
};

/// Chunks and limits of a plan's placement of queries.
PricedChunks make_priced_chunks(const ChunkTable& table, const Placement& placement);

/// The set of chunks that a rank may hold with the least of (rows fetched - prices), by dynamic
/// programming over (chunk, count of chunks, area). Area is rounded down to parts of max_area, so
/// that no set within the limits is missed.
class CheapestSet {
 public:
  CheapestSet(const PricedChunks& chunks, std::int32_t area_steps);

  /// The least value; `prices` are within max_price().
  std::int64_t value(std::span<const std::int32_t> prices);
  /// The same, and the set in descending order.
  std::int64_t find(std::span<const std::int32_t> prices, std::vector<std::int32_t>& set);
  /// Cells that one call fills.
  std::int64_t num_cells() const;

 private:
  template <bool kIsTraced>
  std::int64_t fill(std::span<const std::int32_t> prices);
  template <bool kIsTraced>
  void add_chunk(std::int32_t chunk, std::int32_t count, std::int32_t price);
  void trace(std::vector<std::int32_t>& set) const;
  std::size_t row(std::int32_t count) const { return static_cast<std::size_t>(count) * width_; }

  const PricedChunks& chunks_;
  std::size_t width_ = 1;            ///< area steps of a rank and one more
  std::vector<std::int32_t> steps_;  ///< of each chunk
  std::int32_t best_count_ = 0;
  /// [counts, width]: the least value with at most so much area, and of (value - seen_end of the
  /// last chunk).
  std::vector<std::int32_t> closed_;
  std::vector<std::int32_t> open_;
  std::vector<std::uint8_t> choice_;  ///< [chunks, counts, width]
};

/// Rows that every placement within the limits fetches, summed over ranks, by these prices.
std::int64_t proven_rows(const PricedChunks& chunks, const PriceProof& proof);

}  // namespace magi::cli
