// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/engine.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/words.hpp"
#include "comm/rows/call_options.hpp"

namespace magi::comm {
namespace {

template <typename Stream>
Stream& stream_of(std::vector<Stream>& streams, std::int32_t peer) {
  const auto found = std::lower_bound(
      streams.begin(), streams.end(), peer,
      [](const Stream& stream, std::int32_t wanted) { return stream.peer < wanted; });
  MAGI_CHECK(found != streams.end() && found->peer == peer);
  return *found;
}

std::uint64_t kind_and_stage(const Exchange& exchange) {
  return static_cast<std::uint64_t>(exchange.kind) << 32 |
         static_cast<std::uint32_t>(exchange.tag.stage);
}

}  // namespace

Engine::Engine(std::int32_t rank, std::int32_t num_ranks, std::shared_ptr<SharedRegion> region,
               const EngineOptions& options, HasEnded has_ended)
    : rank_(rank),
      num_ranks_(num_ranks),
      region_(std::move(region)),
      options_(options),
      has_ended_(std::move(has_ended)),
      layout_(num_ranks),
      base_(region_->map(0, layout_.num_bytes())) {
  for (std::int32_t other = 0; other < num_ranks; ++other) {
    peers_.push_back(other == rank ? nullptr
                                   : std::unique_ptr<Peer>(new Peer{
                                         .outbox = Outbox(region_, base_, layout_, rank, other),
                                         .inbox = Inbox(region_, base_, layout_, other, rank)}));
  }
}

Engine::~Engine() { release(); }

void Engine::release() noexcept {
  if (!region_) return;
  is_over_ = true;
  peers_.clear();
  region_->unmap(0);
  region_.reset();
  has_ended_ = nullptr;
}

void Engine::start(const std::shared_ptr<Exchange>& exchange) {
  check_usable();
  exchange->sequence = ++num_started_;
  active_.push_back(exchange);
  for (const SendStream& stream : exchange->sends) {
    peer(stream.peer).sending.push_back(exchange.get());
  }
  for (const ReceiveStream& stream : exchange->receives) {
    peer(stream.peer).receiving.push_back(exchange.get());
  }
  announce(*exchange);
  compare_calls(*exchange);
  progress();
  retire_finished();
}

void Engine::wait_sync(Exchange& exchange) {
  if (!exchange.done()) check_usable();
  Clock::time_point last_progress = Clock::now(), next_check = last_progress;
  RankBlock& own = block(rank_);
  constexpr std::chrono::milliseconds kCheckEvery(100);
  while (!exchange.done()) {
    const std::uint32_t seen = read_rings(own.bell);
    const bool moved = progress();
    if (exchange.done()) break;
    check_group(exchange);
    const auto now = Clock::now();
    if (moved) last_progress = now;
    if (now >= next_check) {
      check_peers(exchange);
      next_check = now + kCheckEvery;
    }
    if (moved) continue;
    const auto left = options_.comm.deadline - (now - last_progress);
    if (left <= Clock::duration::zero()) time_out(exchange);
    own.awaited.store(1 + blocking_peer(exchange), std::memory_order_relaxed);
    wait_ring(own.bell, seen,
              std::min(kCheckEvery, std::chrono::ceil<std::chrono::milliseconds>(left)));
  }
  own.awaited.store(0, std::memory_order_relaxed);
  retire_finished();
}

void Engine::check_usable() {
  if (!region_) throw CommError("the group is closed", CommFailure::Aborted);
  if (is_over_ || group().failure.state.load(std::memory_order_acquire) == FailureState::Set) {
    throw_recorded("");
  }
}

void Engine::announce(const Exchange& exchange) {
  Announcement& slot = block(rank_).announcements[exchange.sequence % kAnnouncements];
  slot.sequence.store(0);
  slot.plan_digest.store(exchange.tag.plan_digest);
  slot.kind_and_stage.store(kind_and_stage(exchange));
  slot.options.store(exchange.tag.options);
  slot.sequence.store(exchange.sequence);
}

// Both ranks of a pair announce, then look: the later one sees the other. So every pair that
// disagrees is found, before the later one sends or reads a byte.
void Engine::compare_calls(const Exchange& exchange) {
  for (std::int32_t other = 0; other < num_ranks_; ++other) {
    if (other == rank_) continue;
    const Announcement& slot = block(other).announcements[exchange.sequence % kAnnouncements];
    if (slot.sequence.load() != exchange.sequence) continue;
    const std::uint64_t digest = slot.plan_digest.load();
    const std::uint64_t call = slot.kind_and_stage.load();
    const std::uint64_t options = slot.options.load();
    if (slot.sequence.load() != exchange.sequence) continue;
    if (digest == exchange.tag.plan_digest && call == kind_and_stage(exchange)) {
      check_options(exchange, other, options);
      continue;
    }
    fail(CommFailure::PlanMismatch,
         "rank " + std::to_string(rank_) + " is in " + describe(exchange) + ", but rank " +
             std::to_string(other) + " is in stage " +
             std::to_string(static_cast<std::int32_t>(call & 0xffffffff)) + " of " +
             kind_name(static_cast<CallKind>(call >> 32)) + ", plan " + hex(digest));
  }
}

void Engine::check_options(const Exchange& exchange, std::int32_t other, std::uint64_t options) {
  if (options == exchange.tag.options) return;
  fail(CommFailure::PlanMismatch, other_options_text(rank_, exchange.tag.options, other, options) +
                                      "; in " + describe(exchange));
}

bool Engine::progress() {
  try {
    return move_bytes();
  } catch (const std::exception& error) {
    // Also what the engine did not expect, such as lack of memory, must not leave the others
    // waiting.
    if (!is_over_) {
      const auto* known = dynamic_cast<const CommError*>(&error);
      record_failure(known != nullptr ? known->failure() : CommFailure::System,
                     "rank " + std::to_string(rank_) + " failed: " + error.what());
      is_over_ = true;
    }
    throw;
  }
}

bool Engine::move_bytes() {
  bool moved = false;
  for (std::int32_t step = 1; step < num_ranks_; ++step) {
    moved |= send_to((rank_ + step) % num_ranks_);
  }
  for (std::int32_t from = 0; from < num_ranks_; ++from) {
    if (from != rank_) moved |= receive_from(from);
  }
  return moved;
}

bool Engine::send_to(std::int32_t to) {
  Peer& target = peer(to);
  bool moved = false;
  while (!target.sending.empty()) {
    Exchange& exchange = *target.sending.front();
    SendStream& stream = stream_of(exchange.sends, to);
    while (!stream.done() && target.outbox.has_room()) {
      send_packet(target, stream, exchange);
      moved = true;
    }
    if (!stream.done()) break;
    --exchange.open_sends;
    target.sending.pop_front();
  }
  if (moved) ring(block(to).bell);
  return moved;
}

void Engine::send_packet(Peer& to, SendStream& stream, const Exchange& exchange) {
  const std::size_t share =
      options_.comm.window_bytes / static_cast<std::size_t>(std::max(1, num_ranks_ - 1));
  const std::size_t wanted =
      std::min(std::max<std::size_t>(share, static_cast<std::size_t>(stream.total_bytes)),
               options_.max_ring_bytes);
  if (stream.total_bytes > to.outbox.capacity() && wanted > to.outbox.capacity() &&
      to.outbox.grow(wanted)) {
    return;
  }
  to.outbox.publish(
      fill_packet(exchange, stream, to.outbox.payload(), to.outbox.payload_capacity()));
}

bool Engine::receive_from(std::int32_t from) {
  Peer& source = peer(from);
  bool moved = false;
  while (!source.receiving.empty()) {
    Exchange& exchange = *source.receiving.front();
    ReceiveStream& stream = stream_of(exchange.receives, from);
    const PacketHeader* header = source.inbox.peek();
    if (header == nullptr) break;
    check_origin(from, exchange, *header);
    if (!stream.is_started) {
      const std::string wrong = open_stream(exchange, stream, *header);
      if (!wrong.empty()) {
        fail(CommFailure::PlanMismatch, "rank " + std::to_string(rank_) + " in " +
                                            describe(exchange) + ": rank " + std::to_string(from) +
                                            " " + wrong);
      }
    }
    check_packet(exchange, stream, *header, source.inbox.payload_capacity());
    accept_packet(stream, *header, source.inbox.payload());
    source.inbox.release();
    moved = true;
    if (!stream.done()) continue;
    source.receiving.pop_front();
    --exchange.open_receives;
  }
  if (moved) ring(block(from).bell);
  return moved;
}

void Engine::check_origin(std::int32_t from, const Exchange& exchange, const PacketHeader& header) {
  if (header.sequence == exchange.sequence && header.kind == exchange.kind &&
      header.stage == exchange.tag.stage && header.plan_digest == exchange.tag.plan_digest) {
    return check_options(exchange, from, header.options);
  }
  // Calls of equal number were compared when they started; another number means that bytes are
  // lost.
  const bool is_same_call = header.sequence == exchange.sequence;
  fail(is_same_call ? CommFailure::PlanMismatch : CommFailure::System,
       "rank " + std::to_string(rank_) + " expects bytes from rank " + std::to_string(from) +
           " in " + describe(exchange) + ", but has from it stage " + std::to_string(header.stage) +
           " of " + kind_name(header.kind) + " " + std::to_string(header.sequence) + ", plan " +
           hex(header.plan_digest));
}

void Engine::check_packet(const Exchange& exchange, const ReceiveStream& stream,
                          const PacketHeader& header, std::size_t capacity) {
  const std::uint64_t end = header.offset + header.payload_bytes;
  const std::uint64_t missing = stream.total_bytes - stream.received_bytes;
  if (header.offset == stream.received_bytes && header.total_bytes == stream.total_bytes &&
      header.payload_bytes == std::min<std::uint64_t>(capacity, missing)) {
    return;
  }
  fail(CommFailure::System, "rank " + std::to_string(rank_) + " in " + describe(exchange) +
                                ": broken data from rank " + std::to_string(stream.peer) +
                                "; expected byte " + std::to_string(stream.received_bytes) +
                                " of " + std::to_string(stream.total_bytes) + ", seen bytes " +
                                std::to_string(header.offset) + " to " + std::to_string(end));
}

void Engine::retire_finished() {
  std::erase_if(active_, [](const auto& exchange) { return exchange->done(); });
}

}  // namespace magi::comm
