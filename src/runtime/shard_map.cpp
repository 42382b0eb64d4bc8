// SPDX-License-Identifier: Apache-2.0
#include "runtime/shard_map.hpp"

#include <algorithm>

#include "base/bounds.hpp"
#include "magi/runtime.hpp"

namespace magi {
namespace {

/// Local row at which every chunk starts on its rank.
std::vector<std::int32_t> chunk_local_rows(const Placement& placement) {
  std::vector<std::int32_t> local(static_cast<std::size_t>(placement.num_chunks()));
  for (std::int32_t rank = 0; rank < placement.num_ranks; ++rank) {
    std::int32_t row = 0;
    for (const std::int32_t chunk : placement.chunks_of(rank)) {
      local[static_cast<std::size_t>(chunk)] = row;
      row += placement.chunk_rows(chunk).size();
    }
  }
  return local;
}

/// Cuts [begin, end) of the sequence at chunk borders and gives each piece to `visit`.
template <typename Visitor>
void for_each_chunk_piece(const Placement& placement, const std::vector<std::int32_t>& local_rows,
                          Range rows, const Visitor& visit) {
  while (!rows.empty()) {
    const std::int32_t chunk = rows.begin / placement.chunk_size;
    const Range whole = placement.chunk_rows(chunk);
    const auto c = static_cast<std::size_t>(chunk);
    const std::int32_t end = std::min(rows.end, whole.end);
    visit(ShardRun{.rank = placement.chunk_rank[c],
                   .local_row = local_rows[c] + rows.begin - whole.begin,
                   .global_row = rows.begin,
                   .num_rows = end - rows.begin});
    rows.begin = end;
  }
}

}  // namespace

std::vector<ShardRun> shard_runs(const Placement& placement, std::int32_t rank,
                                 std::int32_t num_rows) {
  std::vector<ShardRun> runs;
  std::int32_t local_row = 0;
  for (const std::int32_t chunk : placement.chunks_of(rank)) {
    Range rows = placement.chunk_rows(chunk);
    rows.end = std::min(rows.end, num_rows);
    if (rows.empty()) break;
    if (!runs.empty() && runs.back().global_row + runs.back().num_rows == rows.begin) {
      runs.back().num_rows += rows.size();
    } else {
      runs.push_back({.rank = rank,
                      .local_row = local_row,
                      .global_row = rows.begin,
                      .num_rows = rows.size()});
    }
    local_row += rows.size();
  }
  return runs;
}

RowExchange gather_exchange(const Placement& placement, std::int32_t rank, std::int32_t num_rows) {
  RowExchange exchange;
  const std::vector<ShardRun> own = shard_runs(placement, rank, num_rows);
  for (std::int32_t peer = 0; peer < placement.num_ranks; ++peer) {
    if (peer == rank) continue;
    for (const ShardRun& run : own) {
      exchange.owned.push_back({.peer = peer, .row = run.local_row, .num_rows = run.num_rows});
    }
    for (const ShardRun& run : shard_runs(placement, peer, num_rows)) {
      exchange.needed.push_back({.peer = peer, .row = run.global_row, .num_rows = run.num_rows});
    }
  }
  return exchange;
}

RollTable roll_table(const Placement& placement, std::int32_t rank, std::int32_t num_valid_rows,
                     std::int64_t shift) {
  RollTable table;
  const auto add = [&](const ShardRun& source, const ShardRun& target) {
    const std::int32_t num_rows = target.num_rows;
    if (source.rank == rank && target.rank == rank) {
      table.moves.push_back({source.local_row, target.local_row, num_rows});
    } else if (source.rank == rank) {
      table.exchange.owned.push_back({target.rank, source.local_row, num_rows});
    } else if (target.rank == rank) {
      table.exchange.needed.push_back({source.rank, target.local_row, num_rows});
    }
  };
  const std::vector<std::int32_t> local_rows = chunk_local_rows(placement);
  const std::int64_t n = num_valid_rows;
  const auto offset = static_cast<std::int32_t>(n == 0 ? 0 : ((shift % n) + n) % n);
  // Targets [0, offset) come from the last `offset` rows, the others from `offset` rows earlier.
  const auto add_span = [&](Range targets, std::int32_t back) {
    for_each_chunk_piece(placement, local_rows, targets, [&](ShardRun target) {
      const Range sources{target.global_row - back, target.global_row - back + target.num_rows};
      for_each_chunk_piece(placement, local_rows, sources, [&](const ShardRun& source) {
        target.num_rows = source.num_rows;
        add(source, target);
        target.local_row += source.num_rows;
      });
    });
  };
  add_span({0, offset}, offset - num_valid_rows);
  add_span({offset, num_valid_rows}, offset);
  add_span({num_valid_rows, placement.num_rows}, 0);
  return table;
}

std::vector<std::int64_t> position_ids(const Placement& placement, std::int32_t rank,
                                       std::int32_t num_valid_rows) {
  require_between("rank", rank, 0, placement.num_ranks - 1);
  require_between("num_valid_rows", num_valid_rows, 1, placement.num_rows);
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(placement.rows_of(rank)));
  for (const std::int32_t chunk : placement.chunks_of(rank)) {
    const Range rows = placement.chunk_rows(chunk);
    for (std::int32_t row = rows.begin; row < rows.end; ++row) {
      ids.push_back(std::min(row, num_valid_rows - 1));
    }
  }
  return ids;
}

}  // namespace magi
