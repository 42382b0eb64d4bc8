// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "magi/exchange.hpp"

// How the rows of an exchange lie in one buffer per direction: by peer, in the order of the
// records. Rows of the own rank do not travel.
namespace magi::comm {

/// Up to kRowsPerTask rows of a local tensor and where they lie on the wire.
struct RowTask {
  std::int32_t local_row = 0;
  std::int32_t wire_row = 0;
  std::int32_t num_rows = 0;
  friend bool operator==(const RowTask&, const RowTask&) = default;
};
inline constexpr std::int32_t kRowsPerTask = 32;

/// One side's rows.
struct WireOrder {
  std::vector<std::int64_t> peer_rows;  ///< [num_ranks], 0 for the own rank
  std::int64_t num_rows = 0;            ///< on the wire
  std::vector<RowTask> tasks;           ///< ascending by wire_row
  /// local_row - wire_row where it is the same for all rows: the wire's order is the tensor's.
  std::optional<std::int32_t> shift;

  std::vector<RowTask> own_tasks;  ///< the own rank's rows; wire_row counts among them
  std::int64_t num_own_rows = 0;
  std::int64_t rows_before_own = 0;  ///< rows of lower ranks

  /// Bytes per peer for rows of `row_bytes` bytes.
  std::vector<std::int64_t> peer_bytes(std::int64_t row_bytes) const;
};

WireOrder wire_order(std::span<const PeerRows> records, std::int32_t rank, std::int32_t num_ranks);

/// Rows [row, row + num_rows) of a tensor to which as many wire rows are added from each of
/// `parts`[first_part, first_part + num_parts), in this order, which is that of the ranks.
struct SumTask {
  std::int32_t row = 0;
  std::int32_t num_rows = 0;
  std::int32_t first_part = 0;
  std::int32_t num_parts = 0;
  std::int32_t sum_row = 0;  ///< the first row counted among those that something is added to
  friend bool operator==(const SumTask&, const SumTask&) = default;
};
struct SumTable {
  std::vector<SumTask> tasks;  ///< ascending by row; rows that nothing is added to are left out
  std::vector<std::int32_t> parts;  ///< wire row of a task's first row

  /// Rows that something is added to.
  std::int32_t num_rows() const {
    return tasks.empty() ? 0 : tasks.back().sum_row + tasks.back().num_rows;
  }
};

/// The sum over partials that arrive in the order of `owned`, the own rank's after the wire's.
SumTable sum_table(const WireOrder& owned);

}  // namespace magi::comm
