// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "comm/engine/engine.hpp"
#include "comm/net/group_log.hpp"

namespace magi::comm {

void Engine::check_group(const Exchange& exchange) {
  if (group().failure.state.load(std::memory_order_acquire) != FailureState::Set) return;
  throw_recorded(" in " + describe(exchange));
}

/// The peer that keeps the exchange from going on: one whose bytes are missing, else one that does
/// not make room.
std::int32_t Engine::blocking_peer(const Exchange& exchange) const {
  for (const ReceiveStream& stream : exchange.receives) {
    if (!stream.done()) return stream.peer;
  }
  for (const SendStream& stream : exchange.sends) {
    if (!stream.done()) return stream.peer;
  }
  return rank_;
}

void Engine::check_peers(const Exchange& exchange) {
  const std::int32_t blocking = blocking_peer(exchange);
  for (std::int32_t other = 0; other < num_ranks_; ++other) {
    if (other == rank_) continue;
    // Order matters: a process that ends in order says so before it ends.
    const bool has_ended = has_ended_ && has_ended_(other);
    const RankState state = block(other).state.load(std::memory_order_acquire);
    // A rank that left counts only for those who still need it; what it sent is in the ring.
    const bool is_needed = other == blocking;
    if (state == RankState::Running ? !has_ended : !is_needed) continue;
    if (state != RankState::Running && progress()) return;
    check_group(exchange);  // it may have ended because the group had failed
    const char* what = state == RankState::Running ? " died" : " left the group without close_sync";
    fail(CommFailure::PeerDied, "rank " + std::to_string(other) + what + "; rank " +
                                    std::to_string(rank_) + " was waiting in " +
                                    describe(exchange));
  }
}

std::string Engine::awaited_by(std::int32_t other) const {
  std::string text;
  for (std::int32_t i = 1; i < num_ranks_ && other != rank_; ++i) {
    other = layout_.rank(base_, other).awaited.load(std::memory_order_relaxed) - 1;
    if (other < 0) break;
    text += ", which waited for rank " + std::to_string(other);
  }
  return text.empty() ? text : text + ',';
}

void Engine::time_out(const Exchange& exchange) {
  const std::int32_t other = blocking_peer(exchange);
  std::string text = "rank " + std::to_string(rank_) + " waited " +
                     std::to_string(options_.comm.deadline.count()) + " ms for rank " +
                     std::to_string(other) + awaited_by(other) + " in " + describe(exchange);
  for (const ReceiveStream& stream : exchange.receives) {
    if (stream.peer != other || stream.done()) continue;
    const std::string expected = exchange.is_gather() && !stream.is_started
                                     ? "a message"
                                     : std::to_string(stream.total_bytes) + " bytes from it";
    fail(CommFailure::Timeout,
         text + ": expected " + expected + ", seen " + std::to_string(stream.received_bytes));
  }
  for (const SendStream& stream : exchange.sends) {
    if (stream.peer != other || stream.done()) continue;
    fail(CommFailure::Timeout, text + ": expected it to take " +
                                   std::to_string(stream.total_bytes) + " bytes, sent " +
                                   std::to_string(stream.sent_bytes));
  }
  fail(CommFailure::Timeout, text);
}

void Engine::drop(const Exchange& exchange) noexcept {
  if (exchange.done() || is_over_) return;
  try {
    abort("rank " + std::to_string(rank_) + " dropped " + describe(exchange) +
          " before it was complete");
  } catch (const std::bad_alloc&) {
    abort("an exchange was dropped before it was complete");
  }
  leave(RankState::Gone);
}

void Engine::check_failure() {
  if (!region_) return;
  if (group().failure.state.load(std::memory_order_acquire) == FailureState::Set) {
    throw_recorded("");
  }
}

void Engine::abort(std::string_view reason) noexcept {
  if (!region_) return;
  if (record_failure(CommFailure::Aborted, reason)) log_abort(rank_, reason);
}

void Engine::leave(RankState state) noexcept {
  if (!region_) return;
  is_over_ = true;
  block(rank_).state.store(state, std::memory_order_release);
  ring_all();
}

void Engine::ring_all() noexcept {
  for (std::int32_t other = 0; other < num_ranks_; ++other) ring(block(other).bell);
}

bool Engine::record_failure(CommFailure kind, std::string_view text) noexcept {
  FailureBlock& failure = group().failure;
  FailureState none = FailureState::None;
  if (!failure.state.compare_exchange_strong(none, FailureState::Writing)) return false;
  failure.kind = static_cast<std::int32_t>(kind);
  failure.reporter = rank_;
  const std::size_t count = std::min(text.size(), failure.text.size() - 1);
  std::memcpy(failure.text.data(), text.data(), count);
  failure.text[count] = '\0';
  failure.state.store(FailureState::Set, std::memory_order_release);
  ring_all();
  return true;
}

void Engine::fail(CommFailure kind, const std::string& text) {
  is_over_ = true;
  record_failure(kind, text);
  throw CommError(text, kind);
}

void Engine::throw_recorded(const std::string& context) {
  is_over_ = true;
  const FailureBlock& failure = layout_.group(base_).failure;
  const std::string self = "rank " + std::to_string(rank_) + context;
  if (failure.state.load(std::memory_order_acquire) != FailureState::Set) {
    throw CommError(self + ": the group is closed", CommFailure::Aborted);
  }
  const auto kind = static_cast<CommFailure>(failure.kind);
  const std::string who = kind == CommFailure::Aborted ? ": aborted by rank " : ": told by rank ";
  throw CommError(self + who + std::to_string(failure.reporter) + ": " + failure.text.data(), kind);
}

}  // namespace magi::comm
