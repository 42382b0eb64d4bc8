// SPDX-License-Identifier: Apache-2.0
#include "comm/nvlink/peer_link.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/math.hpp"
#include "base/mix.hpp"
#include "base/words.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"

namespace magi::comm {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kLeastArea = std::int64_t{4} << 20;
/// Larger areas are not doubled: the memory is worth more than the wait.
constexpr std::int64_t kMostDoubled = std::int64_t{1} << 30;
constexpr std::int64_t kMostDoubledSaving = std::int64_t{64} << 20;  ///< with PassStart::is_saving
/// Memory for small moves that PassStart does not count.
constexpr std::int64_t kSpareBytes = std::int64_t{1} << 20;
constexpr std::uint64_t kMagic = 0x6d6167696c696e6b;  // "magilink"
constexpr auto kWatchPeriod = std::chrono::milliseconds(100);

std::shared_ptr<PeerMailbox> make_mailbox() {
  void* data = nullptr;
  cuda_check(cudaHostAlloc(&data, sizeof(PeerMailbox), cudaHostAllocPortable), "cudaHostAlloc");
  std::memset(data, 0, sizeof(PeerMailbox));
  const auto release = [](PeerMailbox* box) { cuda_forget(cudaFreeHost(box)); };
  return {static_cast<PeerMailbox*>(data), release};
}

std::string rank_name(std::int32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

PeerLink::PeerLink(Communicator& base, std::int32_t device, const CommOptions& options)
    : base_(base), device_(device), deadline_(options.deadline) {
  if (base.num_ranks() > kMaxPeers) {
    throw invalid("num_ranks", base.num_ranks(), "up to " + std::to_string(kMaxPeers));
  }
  const DeviceScope scope(device);
  cards_ = exchange_cards(base, device);
  controls_ = share_memory(base, cards_, sizeof(PeerControl), deadline_);
  state_ = DeviceBuffer(sizeof(PassState));
  cuda_check(cudaMemset(state_.data(), 0, sizeof(PassState)), "cudaMemset");
  mailbox_ = make_mailbox();
  view_ = {.control = {},
           .state = static_cast<PassState*>(state_.data()),
           .mailbox = mailbox_.get(),
           .rank = base.rank(),
           .num_ranks = base.num_ranks(),
           .deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(deadline_).count())};
  for (std::size_t peer = 0; peer < controls_.size(); ++peer) {
    view_.control[peer] = reinterpret_cast<PeerControl*>(controls_[peer]->data());
  }
  passes_.emplace();
  alarm_.emplace();
  prove_access();
  for (std::size_t peer = 0; peer < cards_.size(); ++peer) {
    is_sharing_gpu_ =
        is_sharing_gpu_ || (peer != static_cast<std::size_t>(view_.rank) &&
                            cards_[peer].gpu == cards_[static_cast<std::size_t>(view_.rank)].gpu);
  }
  const RankCard& own = cards_[static_cast<std::size_t>(view_.rank)];
  const auto is_watched = [&](const RankCard& card) {
    return card.process_space == own.process_space;
  };
  const bool has_others = std::ranges::any_of(
      cards_, [&](const RankCard& card) { return card.process.pid != own.process.pid; });
  if (!has_others) return;
  if (!std::ranges::all_of(cards_, is_watched)) {
    log_blind();
    return;
  }
  std::vector<ProcessId> processes;
  for (const RankCard& card : cards_) processes.push_back(card.process);
  processes_.emplace(processes);
  watcher_ = std::thread([this] { watch(); });
}

void PeerLink::log_blind() const noexcept {
  log(LogLevel::Warn, "comm", [&] {
    return rank_name(view_.rank) +
           " cannot see the processes of all ranks of its nvlink group, as some have a process " +
           "space of their own: that one has ended is learnt when a wait ends at its deadline of " +
           std::to_string(deadline_.count()) + " ms";
  });
}

PeerLink::~PeerLink() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  stop_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (!passes_) return;
  // Enqueued work may still use the memory.
  on_device_or_drop(device_, [] { cuda_forget(cudaDeviceSynchronize()); });
}

/// Checks that ranks can write each other's memory: every rank writes a word to every other.
void PeerLink::prove_access() {
  std::string trouble;
  for (std::int32_t peer = 0; peer < num_ranks() && trouble.empty(); ++peer) {
    std::uint64_t* target = &view_.control[peer]->magic[rank()];
    if (cuda_forget(cudaMemcpy(target, &kMagic, sizeof(kMagic), cudaMemcpyHostToDevice)) !=
        cudaSuccess) {
      trouble = "it cannot write the memory of " + rank_name(peer);
    }
  }
  // A copy from the host's memory may return before it has arrived.
  cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  agree_sync(base_, trouble);
  const auto words = to_host_sync<std::uint64_t>(view_.control[rank()]->magic,
                                                 static_cast<std::size_t>(num_ranks()));
  for (std::size_t peer = 0; peer < words.size() && trouble.empty(); ++peer) {
    if (words[peer] != kMagic) {
      trouble = "what " + rank_name(static_cast<std::int32_t>(peer)) +
                " writes does not arrive in its memory";
    }
  }
  agree_sync(base_, trouble);
}

void PeerLink::check_pass(const PassStart& start, cudaStream_t stream) const {
  if (start.most_bytes + kSpareBytes <= area_bytes_ || graph_of_capture(stream) == nullptr) return;
  throw invalid("stream", "being captured",
                "one that is not, for the first call of its size over nvlink");
}

void PeerLink::begin_pass(const PassStart& start, cudaStream_t stream) {
  MAGI_CHECK(!is_in_pass_);
  check();
  const DeviceScope scope(device_);
  check_pass(start, stream);
  if (start.most_bytes + kSpareBytes > area_bytes_) grow(start);
  cudaGraph_t graph = graph_of_capture(stream);
  // A thread that frees memory or waits for the GPU blocks work that others enqueue there, and
  // waits for their waits. So all ranks that share a GPU enqueue a pass together.
  meet_on_shared_gpu_sync();
  if (graph == nullptr) {
    passes_->begin(stream);
  } else {
    for (const auto& window : windows_) keep_with_graph(graph, window);
  }
  area_ = (area_ + 1) % num_areas_;
  const std::int32_t slot = (window_version_ * 2 + area_) % kMaxAreas;
  const std::uint64_t digest = start.digest + ++num_passes_ * kGoldenRatio;
  // If ranks share a GPU's queue, the kernel would wait for one that comes after it.
  const bool is_compared = start.is_first && !is_sharing_gpu_;
  unbegun_ = {.area = slot, .digest = digest, .is_compared = is_compared};
  // Their pushes must not wait for each other either, as they may be in one queue.
  if (is_sharing_gpu_) launch_begin_pass(view_, *take_begin(), stream);
  used_bytes_ = 0;
  num_moves_ = 0;
  is_in_pass_ = true;
}

void PeerLink::meet_on_shared_gpu_sync() {
  if (is_sharing_gpu_) base_.allgather_sync({});
}

void PeerLink::end_pass(cudaStream_t stream) noexcept {
  if (!std::exchange(is_in_pass_, false)) return;
  const std::optional<PassBegin> begin = take_begin();
  on_device_or_drop(device_, [&] {
    if (begin) launch_begin_pass(view_, *begin, stream);  // the pass has had no moves
  });
  try {
    meet_on_shared_gpu_sync();
  } catch (const std::exception&) {
    return;  // the group has failed, and the next call throws
  }
  on_device_or_drop(device_, [&] {
    if (graph_of_capture(stream) == nullptr) passes_->end(stream);
  });
}

std::int64_t PeerLink::place(std::int64_t most_bytes) {
  const std::int64_t offset = used_bytes_;
  used_bytes_ += align_up(std::max<std::int64_t>(most_bytes, 1), kAlignment);
  MAGI_CHECK(is_in_pass_ && used_bytes_ <= area_bytes_);
  return offset;
}

std::byte* PeerLink::area(std::int32_t rank) const {
  return windows_[static_cast<std::size_t>(rank)]->data() + area_ * area_bytes_;
}

std::int32_t PeerLink::next_move() {
  MAGI_CHECK(is_in_pass_ && num_moves_ < kMaxMoves);
  return num_moves_++;
}

/// Replaces the window by a larger one. This rank's passes end first; a peer that arrives here no
/// longer uses the old window.
void PeerLink::grow(const PassStart& start) {
  const std::int64_t area_bytes = start.most_bytes + kSpareBytes;
  const std::int64_t wanted =
      align_up(std::max({area_bytes, kLeastArea, area_bytes_ + area_bytes_ / 4}), kLeastArea);
  std::string trouble;
  if (const cudaError_t status = cuda_forget(cudaDeviceSynchronize()); status != cudaSuccess) {
    trouble = std::string("its GPU has failed: ") + cudaGetErrorString(status);
  }
  agree_sync(base_, trouble);
  // Ranks that share a GPU's queue must not wait for each other to begin a pass.
  const bool is_saving = start.is_saving && !is_sharing_gpu_;
  num_areas_ = wanted > (is_saving ? kMostDoubledSaving : kMostDoubled) ? 1 : 2;
  area_bytes_ = 0;
  windows_.clear();
  windows_ = share_memory(base_, cards_, static_cast<std::size_t>(num_areas_ * wanted), deadline_);
  area_bytes_ = wanted;
  area_ = 0;
  ++window_version_;
}

std::string PeerLink::failure_text(const PeerMailbox& box) const {
  const std::string self = rank_name(rank());
  const std::string peer = rank_name(box.peer);
  const std::string where = "exchange " + std::to_string(box.move) + " of pass " +
                            std::to_string(box.expected) + ", call " + hex(box.digest);
  const std::string limit = std::to_string(deadline_.count()) + " ms";
  switch (box.failed) {
    case PeerWait::OtherPlan:
      return peer + " is in another call (" + hex(box.peer_digest) + ") than " + self + " in " +
             where;
    case PeerWait::Left:
      return peer + " left the group while " + self + " was in " + where;
    case PeerWait::Credit:
      return self + " waited " + limit + " for " + peer + " to begin pass " +
             std::to_string(box.expected) + ", saw " + std::to_string(box.seen) + ", call " +
             hex(box.digest);
    default:
      return self + " waited " + limit + " for rows of " + peer + " in " + where + ", saw " +
             std::to_string(box.seen);
  }
}

std::string PeerLink::place_text(const PeerMailbox& box) const {
  std::string begun = "; " + rank_name(rank()) + " had begun pass " +
                      std::to_string(num_passes_.load(std::memory_order_relaxed));
  const auto stopped = std::atomic_ref(mailbox_->stopped).load(std::memory_order_acquire);
  if (stopped == PeerWait::None) return begun;
  const std::string peer = rank_name(box.stopped_peer);
  const std::string pass = "pass " + std::to_string(box.stopped_pass);
  if (stopped == PeerWait::Credit) return begun + " and waited for " + peer + " in " + pass;
  return begun + " and waited for rows of " + peer + " in exchange " +
         std::to_string(box.stopped_move) + " of " + pass;
}

void PeerLink::check() {
  const PeerMailbox& box = *mailbox_;
  const auto failed = std::atomic_ref(mailbox_->failed).load(std::memory_order_acquire);
  if (!failure_.is_set() && failed != PeerWait::None) {
    const CommFailure kind = failed == PeerWait::OtherPlan ? CommFailure::PlanMismatch
                             : failed == PeerWait::Left    ? CommFailure::Aborted
                                                           : CommFailure::Timeout;
    failure_.set({failure_text(box), kind});
  }
  const std::optional<CommError> failure = failure_.get();
  if (!failure) return;
  if (failure->failure() != CommFailure::PeerDied) throw CommError(*failure);
  throw CommError(failure->what() + place_text(box), failure->failure());
}

void PeerLink::fail(std::int32_t rank, const char* what, const char* reason,
                    CommFailure failure) noexcept {
  failure_.set(rank, what, reason, failure);
  std::atomic_ref(mailbox_->is_closed).store(1, std::memory_order_release);
}

void PeerLink::abort(const std::string& reason) noexcept {
  fail(rank(), " aborted: ", reason.c_str(), CommFailure::Aborted);
  on_device_or_drop(device_, [this] {
    const UncapturedScope uncaptured;
    for (std::int32_t peer = 0; peer < num_ranks(); ++peer) {
      cuda_forget(cudaMemsetAsync(&view_.control[peer]->aborted[rank()], 1, sizeof(std::uint64_t),
                                  alarm_->handle()));
    }
  });
}

/// Runs in a thread, and ends all waits when the process of a peer has ended.
void PeerLink::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kWatchPeriod, [this] { return is_ending_; })) {
    for (std::int32_t peer = 0; peer < num_ranks(); ++peer) {
      if (peer == rank() || !processes_->has_ended(static_cast<std::size_t>(peer))) continue;
      lock.unlock();
      fail(peer, " ended: ", "its process is gone", CommFailure::PeerDied);
      // Not a warning: processes of a finished program end at different times.
      log(LogLevel::Info, "comm", [&] {
        return "the nvlink group of " + rank_name(rank()) + " has failed: the process of " +
               rank_name(peer) + " is gone";
      });
      return;
    }
  }
}

}  // namespace magi::comm
