// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "magi/mask.hpp"

namespace magi {

/// The rule by which ranks get chunks of query rows. All of them keep to the count of chunks that
/// token_tolerance allows.
enum class PlacementAlgorithm : std::int32_t {
  Auto,      ///< closed form where one is known and balanced, else Affinity
  Thorough,  ///< Auto, then a longer search: tens of milliseconds for 128 chunks
  Zigzag,    ///< chunk pairs (i, 2P-1-i): one causal document
  Affinity,  ///< load-capped affinity greedy + local search over pairs of ranks, always
  MinHeap,   ///< longest chunk first to the least loaded rank; blind to communication
  RandomSelect,
  SequentialSelect,  ///< contiguous
};
inline constexpr std::int32_t kNumPlacementAlgorithms = 7;

/// "auto", "thorough", "zigzag", "affinity", "min_heap", "random_select", "sequential_select".
const char* placement_name(PlacementAlgorithm algorithm);
/// Throws InvalidArgument listing the names.
PlacementAlgorithm placement_from_name(std::string_view name);

struct PlacementConfig {
  PlacementAlgorithm algorithm = PlacementAlgorithm::Auto;
  /// Rows; an upper bound, as in MagiAttention (see resolve_chunk_size).
  std::optional<std::int32_t> chunk_size = {};
  std::int32_t min_chunks_per_rank = 8;
  bool uneven_shard = false;     ///< no padding: the last chunk may be short
  double token_tolerance = 0.0;  ///< a rank may hold up to (1 + tolerance) x the mean chunk count
  std::uint64_t seed = 42;       ///< RandomSelect

  friend bool operator==(const PlacementConfig&, const PlacementConfig&) = default;
};

/// Which rank holds which chunk of rows. Chunk c is rows [c * chunk_size, min((c + 1) * chunk_size,
/// num_rows)). A rank's local row order is its chunks in ascending order.
struct Placement {
  std::int32_t num_rows = 0;  ///< padded rows
  std::int32_t chunk_size = 0;
  std::int32_t num_ranks = 0;
  std::vector<std::int32_t> chunk_rank;   ///< [num_chunks]
  std::vector<std::int32_t> rank_begin;   ///< [num_ranks + 1] into rank_chunks
  std::vector<std::int32_t> rank_chunks;  ///< chunks of each rank, ascending

  std::int32_t num_chunks() const { return static_cast<std::int32_t>(chunk_rank.size()); }
  Range chunk_rows(std::int32_t chunk) const;
  std::span<const std::int32_t> chunks_of(std::int32_t rank) const;
  std::int32_t rows_of(std::int32_t rank) const;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Fills rank_begin and rank_chunks from chunk_rank; checks that every entry is a rank. Every
/// user-given layout enters here.
Placement placement_from_chunks(std::int32_t num_rows, std::int32_t chunk_size,
                                std::int32_t num_ranks, std::vector<std::int32_t> chunk_rank);

/// A hash by which ranks compare where rows lie; equal placements have equal ones.
std::uint64_t placement_digest(const Placement& placement);

/// MagiAttention's rule: auto = ceil(rows / (min_chunks_per_rank * num_ranks)), then min(auto,
/// chunk_size) if one is given.
std::int32_t resolve_chunk_size(std::int32_t rows, std::int32_t num_ranks,
                                const PlacementConfig& config);
/// Rows to add so that rows is a multiple of chunk * num_ranks.
std::int32_t padding_rows(std::int32_t rows, std::int32_t num_ranks, std::int32_t chunk);

/// Which ranks share a node, and what it costs to leave it.
struct NodeShape {
  std::int32_t devices_per_node = 0;  ///< ranks fill one node after the other; 0: one holds all
  std::int32_t crossing_price = 1;    ///< of a row that enters a node, in rows that stay inside one
};

/// Places the query chunks of a mask (its keys travel with the queries of the same row). Pure: same
/// inputs, same result. Of nodes Auto, Affinity and Thorough take notice. Throws InvalidArgument
/// when there are fewer chunks than ranks or a value is out of range.
Placement place(const Mask& mask, std::int32_t num_ranks, const PlacementConfig& config,
                const NodeShape& nodes = {});

/// The exact cost of a placement, for one mask over self-attention rows.
struct PlacementCost {
  std::vector<std::int64_t> area;  ///< [num_ranks]
  std::vector<std::int64_t>
      remote_rows;       ///< [num_ranks] distinct key rows a rank needs and does not hold
  double balance = 1.0;  ///< max area / mean area
};
/// Throws InvalidArgument for a bad mask, or one with more query rows than the placement.
PlacementCost placement_cost(const Mask& mask, const Placement& placement);

/// Key rows that enter each node, [nodes]: distinct rows that its ranks need and none of them
/// holds. Throws InvalidArgument as placement_cost, and for devices_per_node below 1.
std::vector<std::int64_t> crossing_rows(const Mask& mask, const Placement& placement,
                                        std::int32_t devices_per_node);

}  // namespace magi
