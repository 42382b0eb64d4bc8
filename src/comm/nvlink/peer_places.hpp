// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/exchange.hpp"

// Where the rows that a rank sends lie at the ranks that take them: what a transport needs that
// writes rows into the memory of others.
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

/// One rank's side of an exchange. Neighbouring tasks have different peers as far as there are
/// such.
struct PeerPlaces {
  std::int32_t rank = 0;
  /// Own rows last.
  std::vector<PushTask> to_rows;   ///< owned rows, own ones too -> needed rows
  std::int32_t num_own_tasks = 0;  ///< of to_rows
  /// All needed rows and the wire rows of their owners, ascending by local row; of own rows the
  /// owned row, and a run of them is shared as a whole or not at all.
  std::vector<PushTask> needed_runs;
  std::vector<RowRun> shared;  ///< own rows that other ranks need, ascending and disjoint
  /// The places, by rank, where this rank's rows begin on the wire of one that needs them.
  std::vector<std::int32_t> wire_begin;
  std::uint64_t cast_sources = 0;  ///< bit p: rank p sends rows to this one in a cast; own rows too
  std::uint64_t reduce_sources = 0;  ///< bit p: rank p sends partials to this one
  /// The most over all ranks, so that all lay out their memory alike: rows up to the last needed
  /// one; needed and owned rows, own ones too.
  std::int64_t most_rows = 0, most_needed = 0, most_owned = 0;
  std::int64_t most_remote = 0;  ///< needed rows of other ranks

  bool is_shared(const PushTask& own_run) const;
};

/// `all`: the exchange as each rank has it. Throws InvalidArgument where two ranks disagree about
/// what one sends the other.
PeerPlaces peer_places(std::span<const RowExchange> all, std::int32_t rank);

/// The tables of moves that do not bring rows to their final place, in the order of PeerPlaces:
/// owned rows, without own ones -> wire rows of who needs them.
std::vector<PushTask> wire_tasks(const PeerPlaces& places);
/// Needed rows, without own ones -> wire rows of their owners.
std::vector<PushTask> owner_tasks(const PeerPlaces& places);

}  // namespace magi::comm
