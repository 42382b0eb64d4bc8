// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/comm.hpp"
#include "magi/placement.hpp"

namespace magi {

/// Rows [local_row, + num_rows) of `rank` are rows [global_row, + num_rows) of the sequence.
struct ShardRun {
  std::int32_t rank = 0;
  std::int32_t local_row = 0;
  std::int32_t global_row = 0;
  std::int32_t num_rows = 0;
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};

/// The runs of one rank in local (= ascending global) order, cut to rows below `num_rows`;
/// neighbouring chunks are one run.
std::vector<ShardRun> shard_runs(const Placement& placement, std::int32_t rank,
                                 std::int32_t num_rows);

/// The rows that `rank` exchanges when everyone's local rows go to every rank's global tensor of
/// `num_rows` rows. Own rows are not part of it.
RowExchange gather_exchange(const Placement& placement, std::int32_t rank, std::int32_t num_rows);

/// A run of rows that stays on one rank.
struct LocalMove {
  std::int32_t source_row = 0;
  std::int32_t target_row = 0;
  std::int32_t num_rows = 0;
  friend bool operator==(const LocalMove&, const LocalMove&) = default;
};

/// One rank's part of a roll: rows that change rank, and rows that do not.
struct RollTable {
  RowExchange exchange;
  std::vector<LocalMove> moves;
};

/// Global row i goes to (i + shift) mod num_valid_rows; rows from num_valid_rows on stay. Time and
/// memory are linear in the number of chunks.
RollTable roll_table(const Placement& placement, std::int32_t rank, std::int32_t num_valid_rows,
                     std::int64_t shift);

}  // namespace magi
