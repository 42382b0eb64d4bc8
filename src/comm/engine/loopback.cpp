// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "base/words.hpp"
#include "comm/engine/ring_group.hpp"
#include "comm/net/first_failure.hpp"
#include "comm/rows/call_options.hpp"
#include "cuda/device.hpp"
#include "cuda/order_event.hpp"

// Ranks that are threads of one process meet in every exchange: each offers its buffer and an event
// after what fills it, takes its parts by copies on its own stream, and lets its stream wait until
// the others have taken theirs. The host waits for the other threads, never for a device.
namespace magi::comm {
namespace {

std::string describe(const ExchangeTag& tag) {
  return "plan " + hex(tag.plan_digest) + ", stage " + std::to_string(tag.stage);
}

/// The part that one rank brings to an exchange.
struct Offer {
  const std::byte* send = nullptr;
  std::vector<std::int64_t> send_bytes;
  ExchangeKind kind = ExchangeKind::Other;
  ExchangeTag tag;
  std::int32_t device = 0;
};

/// The events of one rank, on the device it used first.
struct RankEvents {
  OrderEvent ready;  ///< its bytes are there
  OrderEvent taken;  ///< it has its parts
};

/// A barrier of the ranks, and what they show each other there.
class Meeting {
 public:
  Meeting(std::int32_t num_ranks, std::chrono::milliseconds deadline)
      : offers(static_cast<std::size_t>(num_ranks)),
        events(static_cast<std::size_t>(num_ranks)),
        deadline_(deadline),
        is_here_(static_cast<std::size_t>(num_ranks)) {}

  /// Returns when every rank has called it as often as this one.
  void meet_sync(std::int32_t rank, const ExchangeTag& tag) {
    std::unique_lock lock(mutex_);
    failure_.check();
    const std::uint64_t round = round_;
    is_here_[static_cast<std::size_t>(rank)] = true;
    if (++num_here_ == is_here_.size()) {
      is_here_.assign(is_here_.size(), false);
      num_here_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    const auto is_over = [&] { return round_ != round || failure_.is_set(); };
    if (!changed_.wait_for(lock, deadline_, is_over)) {
      failure_.set({"rank " + std::to_string(rank) + " waited " +
                        std::to_string(deadline_.count()) + " ms for " + missing_ranks() +
                        " in an exchange of device memory, " + describe(tag),
                    CommFailure::Timeout});
      changed_.notify_all();
    }
    if (round_ == round) failure_.check();
  }

  void abort(std::int32_t rank, const std::string& reason) noexcept {
    failure_.set(rank, " aborted: ", reason.c_str(), CommFailure::Aborted);
    wake();
  }

  /// Throws the first failure, which this may be.
  void refuse(const std::string& text) {
    failure_.set({text, CommFailure::PlanMismatch});
    wake();
    failure_.check();
  }

  std::vector<Offer> offers;  ///< [num_ranks], each written by its rank between meetings
  std::vector<std::optional<RankEvents>> events;  ///< likewise

 private:
  void wake() noexcept {
    { const std::lock_guard lock(mutex_); }  // who looked before the failure was there waits by now
    changed_.notify_all();
  }
  std::string missing_ranks() const {
    std::string text;
    for (std::size_t rank = 0; rank < is_here_.size(); ++rank) {
      if (!is_here_[rank]) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
    return text;
  }

  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> is_here_;
  std::size_t num_here_ = 0;
  std::uint64_t round_ = 0;
  FirstFailure failure_;
};

class Loopback final : public DeviceTransport {
 public:
  Loopback(std::int32_t rank, std::shared_ptr<Meeting> meeting)
      : rank_(rank), meeting_(std::move(meeting)) {}

  void all_to_all_v(const ByteExchange& exchange, void* stream) override {
    const DeviceScope scope(exchange.device);
    const auto queue = static_cast<cudaStream_t>(stream);
    offer(exchange, queue);
    meeting_->meet_sync(rank_, exchange.tag);
    check_offers(exchange);
    take(exchange, queue);
    meeting_->meet_sync(rank_, exchange.tag);
    for (const auto& events : meeting_->events) events->taken.await(queue);
  }

  void abort(const std::string& reason) noexcept override { meeting_->abort(rank_, reason); }

 private:
  void offer(const ByteExchange& exchange, cudaStream_t stream) {
    auto& events = meeting_->events[static_cast<std::size_t>(rank_)];
    if (!events) events.emplace();
    meeting_->offers[static_cast<std::size_t>(rank_)] = {
        .send = static_cast<const std::byte*>(exchange.send),
        .send_bytes = {exchange.send_bytes.begin(), exchange.send_bytes.end()},
        .kind = exchange.kind,
        .tag = exchange.tag,
        .device = exchange.device};
    events->ready.record(stream);
  }

  void check_offers(const ByteExchange& exchange) {
    for (std::size_t peer = 0; peer < meeting_->offers.size(); ++peer) {
      const Offer& theirs = meeting_->offers[peer];
      const std::string name = "rank " + std::to_string(peer);
      if (theirs.tag.plan_digest != exchange.tag.plan_digest ||
          theirs.tag.stage != exchange.tag.stage || theirs.kind != exchange.kind) {
        meeting_->refuse(name + " is in " + describe(theirs.tag) + ", rank " +
                         std::to_string(rank_) + " in " + describe(exchange.tag));
      }
      if (theirs.tag.options != exchange.tag.options) {
        meeting_->refuse(other_options_text(rank_, exchange.tag.options,
                                            static_cast<std::int32_t>(peer), theirs.tag.options) +
                         "; in " + describe(exchange.tag));
      }
      const std::int64_t sent = theirs.send_bytes[static_cast<std::size_t>(rank_)];
      if (sent != exchange.receive_bytes[peer]) {
        meeting_->refuse(name + " sends rank " + std::to_string(rank_) + " " +
                         std::to_string(sent) + " bytes, expected " +
                         std::to_string(exchange.receive_bytes[peer]) + ", in " +
                         describe(exchange.tag));
      }
    }
  }

  void take(const ByteExchange& exchange, cudaStream_t stream) {
    auto* target = static_cast<std::byte*>(exchange.receive);
    for (std::size_t peer = 0; peer < meeting_->offers.size(); ++peer) {
      const Offer& theirs = meeting_->offers[peer];
      const std::int64_t num_bytes = exchange.receive_bytes[peer];
      if (num_bytes == 0) continue;
      const std::byte* source = theirs.send;
      for (std::int32_t before = 0; before < rank_; ++before) {
        source += theirs.send_bytes[static_cast<std::size_t>(before)];
      }
      meeting_->events[peer]->ready.await(stream);
      cuda_check(cudaMemcpyAsync(target, source, static_cast<std::size_t>(num_bytes),
                                 cudaMemcpyDefault, stream),
                 "cudaMemcpyAsync");
      target += num_bytes;
    }
    meeting_->events[static_cast<std::size_t>(rank_)]->taken.record(stream);
  }

  std::int32_t rank_;
  std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::unique_ptr<DeviceTransport>> make_loopback_transports(std::int32_t num_ranks,
                                                                       const CommOptions& options) {
  const auto meeting = std::make_shared<Meeting>(num_ranks, options.deadline);
  std::vector<std::unique_ptr<DeviceTransport>> transports;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    transports.push_back(std::make_unique<Loopback>(rank, meeting));
  }
  return transports;
}

}  // namespace magi::comm
