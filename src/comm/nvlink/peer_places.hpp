// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/exchange.hpp"

// The places of a rank's rows in the memory of the peers that receive them.
namespace magi::comm {

/// Up to kRowsPerPush rows of a local tensor and their place at a peer.
struct alignas(16) PushTask {
  std::int32_t local_row = 0;
  std::int32_t remote_row = 0;
  std::int32_t num_rows = 0;
  std::int32_t peer = 0;
  friend bool operator==(const PushTask&, const PushTask&) = default;
};
inline constexpr std::int32_t kRowsPerPush = 16;

/// Rows [begin, end).
struct RowRun {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  friend bool operator==(const RowRun&, const RowRun&) = default;
};

/// One rank's side of an exchange. Neighbouring tasks have different peers if possible.
struct PeerPlaces {
  std::int32_t rank = 0;
  /// Tasks from owned to needed rows; those of own rows are last.
  std::vector<PushTask> to_rows;
  std::int32_t num_own_tasks = 0;  ///< own tasks of to_rows
  /// All needed rows and their owners' wire rows, ascending by local row; for own rows the owned
  /// row. A run of own rows is shared completely or not at all.
  std::vector<PushTask> needed_runs;
  std::vector<RowRun> shared;  ///< own rows that other ranks need, ascending and disjoint
  /// The first of this rank's rows on the wire of each rank that needs them.
  std::vector<std::int32_t> wire_begin;
  std::uint64_t cast_sources = 0;    ///< bit p: rank p, or this one, sends it rows in a cast
  std::uint64_t reduce_sources = 0;  ///< bit p: rank p sends partials to this one
  /// Maxima over all ranks, so that all ranks lay out memory alike: rows up to the last needed one;
  /// needed and owned rows, both with own rows.
  std::int64_t most_rows = 0, most_needed = 0, most_owned = 0;
  std::int64_t most_remote = 0;  ///< maximum of needed rows of other ranks

  bool is_shared(const PushTask& own_run) const;
};

/// Returns the places of `rank`. `all`: each rank's side of the exchange. Throws InvalidArgument if
/// two ranks disagree about the rows that one sends to the other.
PeerPlaces peer_places(std::span<const RowExchange> all, std::int32_t rank);

/// Returns tasks of a cast that does not write rows to their final place, in the order of
/// PeerPlaces: from owned rows, without own ones, to wire rows of the ranks that need them.
std::vector<PushTask> wire_tasks(const PeerPlaces& places);
/// Returns tasks of a reduce: from needed rows, without own ones, to wire rows of their owners.
std::vector<PushTask> owner_tasks(const PeerPlaces& places);

}  // namespace magi::comm
