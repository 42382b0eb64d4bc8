// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "base/bounds.hpp"
#include "base/math.hpp"
#include "magi/placement.hpp"

namespace magi {
namespace {

void check_positive(const char* argument, std::int32_t value) {
  if (value < 1) throw invalid(argument, value, "1 or more");
}

}  // namespace

Range Placement::chunk_rows(std::int32_t chunk) const {
  require_between("chunk", chunk, 0, num_chunks() - 1);
  // 64 bits: the end of a short last chunk may pass 2^31 before it is clipped.
  const std::int64_t begin = std::int64_t{chunk} * chunk_size;
  const std::int64_t end = std::min<std::int64_t>(begin + chunk_size, num_rows);
  return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
}

std::span<const std::int32_t> Placement::chunks_of(std::int32_t rank) const {
  require_between("rank", rank, 0, num_ranks - 1);
  const auto first = static_cast<std::size_t>(rank_begin[static_cast<std::size_t>(rank)]);
  const auto last = static_cast<std::size_t>(rank_begin[static_cast<std::size_t>(rank) + 1]);
  return std::span<const std::int32_t>(rank_chunks).subspan(first, last - first);
}

std::int32_t Placement::rows_of(std::int32_t rank) const {
  const std::span<const std::int32_t> chunks = chunks_of(rank);
  if (chunks.empty()) return 0;
  // Only the last chunk can be short, and it is the last of its rank.
  const std::int64_t full = std::int64_t{chunk_size} * static_cast<std::int64_t>(chunks.size() - 1);
  return static_cast<std::int32_t>(full) + chunk_rows(chunks.back()).size();
}

Placement placement_from_chunks(std::int32_t num_rows, std::int32_t chunk_size,
                                std::int32_t num_ranks, std::vector<std::int32_t> chunk_rank) {
  require_between("num_rows", num_rows, 0, kMaxRows);
  check_positive("chunk_size", chunk_size);
  check_positive("num_ranks", num_ranks);
  const std::int64_t num_chunks = ceil_div<std::int64_t>(num_rows, chunk_size);
  if (static_cast<std::int64_t>(chunk_rank.size()) != num_chunks) {
    throw invalid("number of chunk ranks", chunk_rank.size(),
                  std::to_string(num_chunks) + " = ceil(num_rows / chunk_size)");
  }
  Placement placement{num_rows, chunk_size, num_ranks, std::move(chunk_rank), {}, {}};
  placement.rank_begin.assign(static_cast<std::size_t>(num_ranks) + 1, 0);
  for (std::size_t c = 0; c < placement.chunk_rank.size(); ++c) {
    const std::int32_t rank = placement.chunk_rank[c];
    if (rank < 0 || rank >= num_ranks) {
      throw invalid("rank of chunk " + std::to_string(c), rank,
                    "0 to " + std::to_string(num_ranks - 1));
    }
    ++placement.rank_begin[static_cast<std::size_t>(rank) + 1];
  }
  for (std::size_t r = 0; r < static_cast<std::size_t>(num_ranks); ++r) {
    placement.rank_begin[r + 1] += placement.rank_begin[r];
  }
  placement.rank_chunks.resize(placement.chunk_rank.size());
  std::vector<std::int32_t> next(placement.rank_begin.begin(), placement.rank_begin.end() - 1);
  for (std::size_t c = 0; c < placement.chunk_rank.size(); ++c) {
    std::int32_t& slot = next[static_cast<std::size_t>(placement.chunk_rank[c])];
    placement.rank_chunks[static_cast<std::size_t>(slot++)] = static_cast<std::int32_t>(c);
  }
  return placement;
}

std::int32_t resolve_chunk_size(std::int32_t rows, std::int32_t num_ranks,
                                const PlacementConfig& config) {
  require_between("rows", rows, 0, kMaxRows);
  check_positive("num_ranks", num_ranks);
  check_positive("min_chunks_per_rank", config.min_chunks_per_rank);
  if (config.chunk_size) check_positive("chunk_size", *config.chunk_size);
  const std::int64_t wanted = std::int64_t{config.min_chunks_per_rank} * num_ranks;
  const std::int64_t automatic = std::max<std::int64_t>(1, ceil_div<std::int64_t>(rows, wanted));
  const std::int64_t limit = config.chunk_size ? *config.chunk_size : automatic;
  return static_cast<std::int32_t>(std::min(automatic, limit));
}

std::int32_t padding_rows(std::int32_t rows, std::int32_t num_ranks, std::int32_t chunk) {
  require_between("rows", rows, 0, kMaxRows);
  check_positive("num_ranks", num_ranks);
  check_positive("chunk", chunk);
  const std::int64_t padded = align_up<std::int64_t>(rows, std::int64_t{chunk} * num_ranks);
  if (padded > kMaxRows) {
    throw invalid("padded rows", padded,
                  "at most " + std::to_string(kMaxRows) + "; use a smaller chunk or fewer ranks");
  }
  return static_cast<std::int32_t>(padded - rows);
}

}  // namespace magi
