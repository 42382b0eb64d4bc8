// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/net/first_failure.hpp"
#include "comm/net/process_watch.hpp"
#include "comm/nvlink/peer_exchanger.hpp"
#include "comm/nvlink/peer_kernels.hpp"
#include "comm/nvlink/shared_windows.hpp"
#include "cuda/memory.hpp"
#include "cuda/order_event.hpp"
#include "cuda/stream.hpp"

namespace magi::comm {

/// One rank's side of a group of one host whose ranks write each other's device memory: the control
/// words that synchronise them (peer_control.hpp), and a window of memory that grows with the
/// largest pass. Passes of a link follow each other, whatever their streams. The caller orders
/// replays of graphs that contain passes with all other passes, alike on all ranks.
class PeerLink {
 public:
  /// Collective. `base` must outlive the group. Throws CommError on all ranks if one cannot join.
  PeerLink(Communicator& base, std::int32_t device, const CommOptions& options);
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  Communicator& base() const { return base_; }
  std::int32_t rank() const { return view_.rank; }
  std::int32_t num_ranks() const { return view_.num_ranks; }
  std::int32_t device() const { return device_; }
  const PeerView& view() const { return view_; }

  /// Begins a pass. Collective: if it needs a larger window than earlier passes, it waits for the
  /// device and the other ranks, else for nothing. Throws CommError if the group has failed.
  void begin_pass(const PassStart& start, cudaStream_t stream);
  /// Throws InvalidArgument if the stream is being captured and the window would have to grow.
  void check_pass(const PassStart& start, cudaStream_t stream) const;
  void end_pass(cudaStream_t stream) noexcept;
  /// Returns, once, the arguments by which the first kernel of a pass begins it.
  std::optional<PassBegin> take_begin() { return std::exchange(unbegun_, std::nullopt); }
  bool is_in_pass() const { return is_in_pass_; }
  /// Whether ranks of this process are on the same GPU, and may share one of its queues.
  bool is_sharing_gpu() const { return is_sharing_gpu_; }
  /// Reserves memory of the pass, and returns its offset, equal on all ranks, which call with the
  /// same sizes in the same order.
  std::int64_t place(std::int64_t most_bytes);
  /// Returns the memory of the pass on a rank.
  std::byte* area(std::int32_t rank) const;
  bool is_in_area(const std::byte* data) const {
    return is_in_pass_ && data >= area(rank()) && data < area(rank()) + area_bytes_;
  }
  std::int64_t used_bytes() const { return used_bytes_; }
  std::int64_t area_bytes() const { return area_bytes_; }
  /// Returns the number of the next move of the pass.
  std::int32_t next_move();

  /// Returns the flags of a move of the pass.
  ArrivalFlags arrival_flags(std::int32_t move) const {
    return {.flags = view_.control[rank()]->arrived[move][0], .expected = &view_.state->pass};
  }

  /// Throws CommError if a wait of this rank failed, a peer has ended, or the group was aborted.
  void check();
  /// Synchronises the hosts of ranks that share a GPU; does nothing for other ranks. Such ranks may
  /// share one of its queues, where one rank's wait blocks another rank's later work. So each calls
  /// this after it enqueues work that others wait for, and before a wait. Collective.
  void meet_on_shared_gpu_sync();

  /// Ends the waits of all ranks.
  void abort(const std::string& reason) noexcept;

 private:
  void prove_access();
  void grow(const PassStart& start);
  void watch();
  std::string failure_text(const PeerMailbox& box) const;
  /// Describes where this rank was when the host learned of a failure.
  std::string place_text(const PeerMailbox& box) const;
  /// Logs a warning that watch() cannot see the other processes.
  void log_blind() const noexcept;
  /// Fails with a text that starts with a rank's name.
  void fail(std::int32_t rank, const char* what, const char* reason, CommFailure failure) noexcept;

  Communicator& base_;
  const std::int32_t device_;
  const std::chrono::milliseconds deadline_;
  std::vector<RankCard> cards_;
  std::vector<std::shared_ptr<MappedMemory>> controls_, windows_;  ///< by rank
  DeviceBuffer state_;
  std::shared_ptr<PeerMailbox> mailbox_;
  PeerView view_;
  std::optional<CallOrder> passes_;
  std::optional<PassBegin> unbegun_;  ///< set until the first work of the pass is enqueued
  std::optional<Stream> alarm_;       ///< stream that tells peers that this rank leaves

  std::int64_t area_bytes_ = 0;  ///< bytes of one area of the window
  std::int32_t num_areas_ = 1;
  std::int32_t window_version_ = 0;
  std::int32_t area_ = 0;
  std::int64_t used_bytes_ = 0;
  std::int32_t num_moves_ = 0;
  std::atomic<std::uint64_t> num_passes_ = 0;  ///< begun by the host
  bool is_in_pass_ = false;
  bool is_sharing_gpu_ = false;  ///< ranks of this process are on the same GPU

  FirstFailure failure_;
  std::mutex mutex_;  ///< guards is_ending_
  std::condition_variable stop_;
  bool is_ending_ = false;
  std::optional<ProcessWatch> processes_;
  std::thread watcher_;
};

}  // namespace magi::comm
