// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/nvlink/peer_kernels.hpp"
#include "cuda/device.hpp"
#include "cuda/exported_memory.hpp"
#include "cuda/memory.hpp"
#include "cuda/order_event.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "gpu/warp_push.hpp"
#include "kernels/sm90/forward/forward.hpp"

// One of two GPUs that send rows to each other.
namespace magi::bench {

enum class Sender : std::uint8_t {
  None,
  Push,          ///< the library's kernel, on `amount` blocks
  Copies,        ///< copy engines, a copy for each run and tensor, to rows of K and V side by side
  TensorCopies,  ///< the same to rows of K and, elsewhere, rows of V: copies without gaps
  CopyBatch,     ///< TensorCopies in one call
  Warps,         ///< spare warps of attention, `amount` of each CTA; alone a warp on each SM
};
struct Sending {
  Sender sender = Sender::None;
  int amount = 0;
};
/// Whether rows of K and of V lie apart at the peer.
inline bool is_flat(Sender sender) {
  return sender == Sender::TensorCopies || sender == Sender::CopyBatch;
}

struct Job {
  Sending sending;
  bool is_beside_attention = false;
};

/// Rows that leave in runs of `run`, the last run first.
struct RunsOfRows {
  std::int32_t rows = 0;
  std::int32_t run = 0;
};

/// Of one job on one GPU, from when its work may begin. [s]
struct Times {
  double sent = 0;       ///< 0 where the push runs inside the stream of attention
  double attention = 0;  ///< until attention has ended
  double host = 0;       ///< of the calls that enqueue what is sent
};

/// Holds both GPUs' work up until all of it is enqueued.
class Gate {
 public:
  Gate();
  void close() { __atomic_store_n(word_.get(), 0, __ATOMIC_RELEASE); }
  void open() { __atomic_store_n(word_.get(), 1, __ATOMIC_RELEASE); }
  const std::int32_t* word() const { return word_.get(); }

 private:
  std::shared_ptr<std::int32_t> word_;
};

class Side {
 public:
  explicit Side(std::int32_t device);
  /// The other GPU is where rows go.
  void connect(const Side& peer);
  void set_runs(const RunsOfRows& runs);
  void enqueue(const Job& job, const std::int32_t* gate);
  Times times_sync();
  /// Clears what was received.
  void clear_sync() const;
  /// Throws InternalError where what was received is not what the other side sent.
  void check_sync(const std::string& what, bool is_apart) const;

 private:
  void make_attention();
  void attend(const KeyArrivals* arrivals, bool is_pushing);
  void send(const Sending& sending);
  void push(int blocks);
  void copy_runs(Sender sender);
  void copy_batch() const;
  void set_warps(int num_warps);
  std::byte* source(int tensor) const;

  std::int32_t device_;
  DeviceScope scope_;  ///< while members are made
  Stream main_, beside_;
  Event begin_, sent_, end_;
  OrderEvent fork_, join_;
  DeviceBuffer q_, k_, v_, out_, lse_;  ///< of attention
  DeviceBuffer source_;                 ///< K, then V
  DeviceBuffer counters_, times_;
  std::unique_ptr<MappedMemory> window_, control_;
  DeviceBuffer state_, push_tasks_, warp_tasks_;
  std::shared_ptr<comm::PeerMailbox> mailbox_;
  const Side* peer_ = nullptr;
  RunsOfRows runs_;
  ForwardArgs args_;
  std::vector<BandSlice> slices_;
  sm90::ForwardState plain_, pushing_;
  decltype(&cuStreamWriteValue64) write_value_ = nullptr;
  std::uint64_t number_ = 0;
  std::int32_t num_passes_ = 0;
  Job job_;
  double host_seconds_ = 0;
};

}  // namespace magi::bench
