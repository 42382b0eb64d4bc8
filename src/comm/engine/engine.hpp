// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/engine/channel.hpp"
#include "comm/engine/exchange.hpp"
#include "comm/engine/layout.hpp"
#include "comm/engine/shared_region.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// Tells whether the process of a rank has ended; empty where ranks are threads.
using HasEnded = std::function<bool(std::int32_t rank)>;

/// The set-up of an engine beyond the public options.
struct EngineOptions {
  CommOptions comm;
  /// A ring grows no further; larger transfers go through it in pieces.
  std::size_t max_ring_bytes = std::size_t{64} << 20;
};

/// One rank's side of a group over a shared region: starts exchanges, moves their bytes without
/// blocking, waits, and turns whatever goes wrong into the group's one failure.
///
/// Bytes of an ordered pair of ranks travel through one ring, first in, first out; exchanges of a
/// rank therefore progress together in whatever call the rank is in, and any order of waiting is
/// safe.
class Engine {
 public:
  Engine(std::int32_t rank, std::int32_t num_ranks, std::shared_ptr<SharedRegion> region,
         const EngineOptions& options, HasEnded has_ended);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::int32_t rank() const { return rank_; }
  std::int32_t num_ranks() const { return num_ranks_; }

  /// Announces the exchange and sends what fits.
  void start(const std::shared_ptr<Exchange>& exchange);
  void wait_sync(Exchange& exchange);
  /// The caller drops an exchange it never waited for: an unfinished one ends the group.
  void drop(const Exchange& exchange) noexcept;
  bool is_idle() const { return active_.empty(); }
  /// Throws the group's failure, whichever rank recorded it. Local; a closed group has none.
  void check_failure();

  void abort(std::string_view reason) noexcept;
  /// Ends this rank's part; the others see `state`. Local.
  void leave(RankState state) noexcept;
  /// After leave: gives up the mappings and descriptors.
  void release() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    Outbox outbox;
    Inbox inbox;
    std::deque<Exchange*> sending;
    std::deque<Exchange*> receiving;
  };

  Peer& peer(std::int32_t rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  GroupBlock& group() { return layout_.group(base_); }
  RankBlock& block(std::int32_t rank) { return layout_.rank(base_, rank); }

  void check_usable();
  void announce(const Exchange& exchange);
  void compare_calls(const Exchange& exchange);
  void check_options(const Exchange& exchange, std::int32_t other, std::uint64_t options);

  bool progress();
  bool move_bytes();
  bool send_to(std::int32_t to);
  bool receive_from(std::int32_t from);
  void send_packet(Peer& to, SendStream& stream, const Exchange& exchange);
  void check_packet(const Exchange& exchange, const ReceiveStream& stream,
                    const PacketHeader& header, std::size_t capacity);
  void check_origin(std::int32_t from, const Exchange& exchange, const PacketHeader& header);
  void retire_finished();

  void check_group(const Exchange& exchange);
  void check_peers(const Exchange& exchange);
  [[noreturn]] void time_out(const Exchange& exchange);
  std::int32_t blocking_peer(const Exchange& exchange) const;
  /// Follows the chain of waits from a rank; the rank at its end is the cause.
  std::string awaited_by(std::int32_t other) const;

  [[noreturn]] void fail(CommFailure kind, const std::string& text);
  [[noreturn]] void throw_recorded(const std::string& context);
  bool record_failure(CommFailure kind, std::string_view text) noexcept;
  void ring_all() noexcept;

  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::shared_ptr<SharedRegion> region_;
  EngineOptions options_;
  HasEnded has_ended_;
  ControlLayout layout_;
  std::byte* base_;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< null for the own rank
  std::deque<std::shared_ptr<Exchange>> active_;
  std::uint64_t num_started_ = 0;
  bool is_over_ = false;
};

}  // namespace magi::comm
