// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "base/address_table.hpp"
#include "comm/device_rows/device_row_layout.hpp"
#include "comm/nvlink/peer_control.hpp"
#include "comm/nvlink/peer_places.hpp"

// Work between ranks that write each other's memory, enqueued on streams. Nothing waits for the
// host. A wait that fails fills the mailbox and ends, and all later ones end at once.
namespace magi::comm {

/// Rows of tensors on their way into the memory of peers.
struct RowPush {
  DeviceRows from[kMaxTensors];
  DeviceRows to[kMaxTensors];       ///< data: from the start of the region
  std::byte* region[kMaxPeers];     ///< the peers' memory that the rows go to
  const PushTask* tasks = nullptr;  ///< those of rows that leave, then those of rows that stay
  std::int32_t num_remote = 0;
  std::int32_t num_own = 0;
  std::int32_t num_remote_blocks = 0;  ///< set by the launch: blocks of rows that leave
  std::int32_t num_tensors = 0;
  std::int32_t num_sections = 1;  ///< equal parts of every row, which arrive one after the other
  std::int32_t move = 0;          ///< of the pass
  bool is_beside = false;         ///< the kernel after it may run beside it
  bool is_awaiting = false;       ///< set by the launch
};

/// The rows that are awaited.
struct RowArrival {
  std::int32_t move = 0;
  std::int32_t num_sections = 1;
  std::uint64_t sources = 0;  ///< bit p: rank p pushes rows to this one
  /// If true, this rank's rows of the move were written by kernels before: all ranks are told
  /// first.
  bool is_telling = false;
  /// The place where they land. A wait that fails leaves NaN there, so that no result is wrong in
  /// silence.
  std::byte* data = nullptr;
  std::int64_t size_bytes = 0;
  /// Results that may have been made of rows of another plan by then; likewise.
  std::byte* results = nullptr;
  std::int64_t results_bytes = 0;
  /// Addresses in the areas that the pass has at the peers, which become those of the same place
  /// here: what a later kernel would have stored there stays.
  AddressTable addresses;
  std::byte* areas[kMaxPeers] = {};  ///< by rank
  std::int64_t area_bytes = 0;
};

struct PassBegin {
  std::int32_t area = 0;
  std::uint64_t digest = 0;
  bool is_compared = false;  ///< waits until all peers are known to be in the same pass
};

/// Numbers a new pass, tells the peers, and waits until none of them needs what lies in its area.
void launch_begin_pass(const PeerView& view, const PassBegin& begin, cudaStream_t stream);

/// Blocks of a push, at most: half a multiprocessor each.
struct PushBlocks {
  std::int32_t remote = 1;
  std::int32_t own = 1;
};
/// Blocks of a push that may wait for peers: the multiprocessors left are enough for whatever else
/// the peers may be waiting for.
inline constexpr std::int32_t kMostWaitingBlocks = 24;

/// Copies rows and tells all ranks what has arrived. The rows' units are of a byte. `begin`: of a
/// pass whose first move this is; the push begins it where it has few blocks and compares no calls,
/// else a kernel in front of it does. `awaited`: what later work on the stream is to see besides,
/// null: nothing.
void launch_push(const PeerView& view, RowPush push, PushBlocks blocks,
                 const std::optional<PassBegin>& begin, const RowArrival* awaited,
                 cudaStream_t stream);

/// Later work on the stream sees what was pushed.
void launch_await(const PeerView& view, const RowArrival& arrival, cudaStream_t stream);

}  // namespace magi::comm
