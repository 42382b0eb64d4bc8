// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/bounds.hpp"
#include "base/math.hpp"
#include "magi/placement.hpp"
#include "plan/placement/automatic.hpp"
#include "plan/placement/chunk_table.hpp"
#include "plan/placement/classic.hpp"

namespace magi {
namespace {

void check_config(const PlacementConfig& config) {
  if (!std::isfinite(config.token_tolerance) || config.token_tolerance < 0.0) {
    throw invalid("token_tolerance", config.token_tolerance, "a finite number of 0 or more");
  }
}

void check_nodes(const NodeShape& nodes) {
  if (nodes.devices_per_node < 0) {
    throw invalid("devices_per_node", nodes.devices_per_node, "0 (one node) or more");
  }
  constexpr std::int32_t kMostPrice = 1024;
  require_between("crossing_price", nodes.crossing_price, 1, kMostPrice);
}

Assignment run_algorithm(const ChunkTable& table, const PlacementLimits& limits,
                         const PlacementConfig& config, const NodeShape& nodes) {
  switch (config.algorithm) {
    case PlacementAlgorithm::Auto:
      return place_automatic(table, limits, nodes);
    case PlacementAlgorithm::Thorough:
      return place_thorough(table, limits, nodes);
    case PlacementAlgorithm::Zigzag:
      return place_zigzag(table, limits);
    case PlacementAlgorithm::Affinity:
      return place_affinity(table, limits, nodes);
    case PlacementAlgorithm::MinHeap:
      return place_min_heap(table, limits);
    case PlacementAlgorithm::RandomSelect:
      return place_random(table, limits, config.seed);
    case PlacementAlgorithm::SequentialSelect:
      return place_sequential(table, limits);
  }
  throw invalid("placement algorithm", static_cast<int>(config.algorithm), "0 to 6");
}

}  // namespace

Placement place(const Mask& mask, std::int32_t num_ranks, const PlacementConfig& config,
                const NodeShape& nodes) {
  validate(mask);
  static_cast<void>(area(mask));  // sums over chunks and ranks then fit int64
  check_config(config);
  check_nodes(nodes);
  const std::int32_t chunk = resolve_chunk_size(mask.rows_q, num_ranks, config);
  const std::int32_t padding =
      config.uneven_shard ? 0 : padding_rows(mask.rows_q, num_ranks, chunk);
  const std::int32_t rows = mask.rows_q + padding;
  if (rows == 0) throw invalid("query rows", 0, "1 or more");
  const std::int32_t num_chunks = ceil_div(rows, chunk);
  if (num_ranks > num_chunks) {
    throw invalid("num_ranks", num_ranks,
                  "1 to the number of chunks, " + std::to_string(num_chunks));
  }
  if (num_ranks == 1) {
    Assignment all(static_cast<std::size_t>(num_chunks), 0);
    return placement_from_chunks(rows, chunk, 1, std::move(all));
  }
  const ChunkTable table = make_chunk_table(mask, rows, chunk);
  const PlacementLimits limits = placement_limits(num_chunks, num_ranks, config.token_tolerance);
  return placement_from_chunks(rows, chunk, num_ranks, run_algorithm(table, limits, config, nodes));
}

}  // namespace magi
