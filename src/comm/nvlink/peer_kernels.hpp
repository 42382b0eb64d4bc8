// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "base/address_table.hpp"
#include "comm/device_rows/device_row_layout.hpp"
#include "comm/nvlink/peer_control.hpp"
#include "comm/nvlink/peer_places.hpp"

// Kernels between ranks that write each other's memory, enqueued on streams. None waits for the
// host. A wait that fails writes the mailbox and ends, and all later ones end at once.
namespace magi::comm {

/// A push of rows of tensors into the memory of peers.
struct RowPush {
  DeviceRows from[kMaxTensors];
  DeviceRows to[kMaxTensors];       ///< data: from the start of the region
  std::byte* region[kMaxPeers];     ///< the peers' memory that receives the rows
  const PushTask* tasks = nullptr;  ///< tasks of rows for peers, then tasks of own rows
  std::int32_t num_remote = 0;
  std::int32_t num_own = 0;
  std::int32_t num_remote_blocks = 0;  ///< set by the launch: blocks for rows that leave
  std::int32_t num_tensors = 0;
  std::int32_t num_sections = 1;  ///< equal parts of every row, which arrive one after the other
  std::int32_t move = 0;          ///< number of the move in the pass
  bool is_beside = false;         ///< the next kernel may run beside it
  bool is_awaiting = false;       ///< set by the launch
};

/// The rows that a wait expects, and the memory that it poisons if they do not arrive.
struct RowArrival {
  std::int32_t move = 0;
  std::int32_t num_sections = 1;
  std::uint64_t sources = 0;  ///< bit p: rank p pushes rows to this one
  /// Earlier kernels have written this rank's rows of the move at the peers, and the wait first
  /// publishes that to all ranks.
  bool is_publishing = false;
  /// The memory where rows arrive. A failed wait fills it with NaN: no result is silently wrong.
  std::byte* data = nullptr;
  std::int64_t size_bytes = 0;
  /// Results that may by then have been computed from rows of another plan; likewise.
  std::byte* results = nullptr;
  std::int64_t results_bytes = 0;
  /// Addresses in the pass's areas at the peers. A wait that fails redirects them to the same place
  /// in the local area, so that a later kernel writes nothing to the peers.
  AddressTable addresses;
  std::byte* areas[kMaxPeers] = {};  ///< by rank
  std::int64_t area_bytes = 0;
};

struct PassBegin {
  std::int32_t area = 0;
  std::uint64_t digest = 0;
  bool is_compared = false;  ///< wait until all peers have begun the same pass
};

/// Numbers a new pass, announces it to the peers, and waits until none still reads its area.
void launch_begin_pass(const PeerView& view, const PassBegin& begin, cudaStream_t stream);

/// The most blocks of a push, each half a multiprocessor.
struct PushBlocks {
  std::int32_t remote = 1;
  std::int32_t own = 1;
};
/// The most blocks of a push that waits for peers. The other multiprocessors are enough for work
/// that the peers may be waiting for.
inline constexpr std::int32_t kMostWaitingBlocks = 24;

/// Copies rows and publishes to all ranks what has arrived. The rows' units are bytes. `begin`: the
/// pass, if this is its first move. The push itself begins the pass if it has few blocks and calls
/// are not compared, else a kernel before it. `awaited`: rows that later work sees too, or null.
void launch_push(const PeerView& view, RowPush push, PushBlocks blocks,
                 const std::optional<PassBegin>& begin, const RowArrival* awaited,
                 cudaStream_t stream);

/// Enqueues a wait: later work on the stream sees the rows.
void launch_await(const PeerView& view, const RowArrival& arrival, cudaStream_t stream);

}  // namespace magi::comm
