// SPDX-License-Identifier: Apache-2.0
#include "comm/net/meeting.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "comm/net/group_size.hpp"

namespace magi::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Gathered = std::vector<std::vector<std::byte>>;

constexpr std::uint64_t kMeetingMagic = 0x6d6167696d656574;  // "magimeet"
/// A rank says who it is at once; who does not is none.
constexpr std::chrono::seconds kHelloTime{2};
constexpr std::size_t kMaxNameBytes = 80;
constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 30;

/// Precedes every message. `failure` is 0, or tells why the meeting ended: then text follows.
struct FrameHeader {
  std::uint64_t magic = kMeetingMagic;
  std::int32_t failure = 0;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 0;
  std::int32_t reserved = 0;
  std::uint64_t num_bytes = 0;
};

// A caller's mistake has no CommFailure; it travels as this number.
constexpr std::int32_t kInvalidArgument = -1;

[[noreturn]] void throw_failure(std::int32_t failure, const std::string& text) {
  if (failure == kInvalidArgument) throw InvalidArgument(text);
  throw CommError(text, static_cast<CommFailure>(failure));
}

/// The meeting as one rank sees it: rank 0 holds a socket to each other rank, these one to it.
class Meeting {
 public:
  Meeting(std::unique_ptr<MeetingPlace> place, std::int32_t rank, std::int32_t num_ranks,
          std::chrono::milliseconds limit)
      : place_(std::move(place)), rank_(rank), num_ranks_(num_ranks), limit_(limit) {
    peers_.resize(static_cast<std::size_t>(num_ranks));
    places_.resize(static_cast<std::size_t>(num_ranks));
  }

  void meet() { rank_ == 0 ? receive_all_ranks() : arrive(); }

  Gathered allgather(std::span<const std::byte> bytes) {
    return rank_ == 0 ? gather_and_spread(bytes) : give_and_take(bytes);
  }

 private:
  std::string group() const { return " of group '" + place_->name() + "'"; }
  std::string limit_text() const { return std::to_string(limit_.count()) + " ms"; }
  Deadline deadline() const { return Clock::now() + limit_; }
  StreamSocket& peer(std::int32_t rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void receive_all_ranks() {
    const auto listener = place_->listen_as_host(num_ranks_);
    if (!listener) {
      throw InvalidArgument("rank is 0, which another process" + group() +
                            " holds; allowed: each rank once");
    }
    const Deadline end = deadline();
    for (std::int32_t missing = num_ranks_ - 1; missing > 0;) {
      if (!listener->wait_readable(end)) {
        end_meeting(static_cast<std::int32_t>(CommFailure::Timeout),
                    missing_ranks() + group() + " did not arrive within " + limit_text());
      }
      auto arrival = place_->accept(*listener);
      if (arrival && welcome(std::move(*arrival), end)) --missing;
    }
    for (std::int32_t other = 1; other < num_ranks_; ++other) send(other, {}, end);
  }

  /// False for a stranger, who is turned away.
  bool welcome(MeetingPlace::Arrival arrival, Deadline end) {
    FrameHeader hello;
    const Deadline soon = std::min(end, Clock::now() + kHelloTime);
    if (arrival.socket.receive_value(hello, soon) != StreamSocket::Result::Done ||
        hello.magic != kMeetingMagic) {
      return false;
    }
    const bool is_rank = hello.rank > 0 && hello.rank < num_ranks_;
    const bool is_taken = is_rank && peer(hello.rank).is_open();
    if (is_rank && !is_taken && hello.num_ranks == num_ranks_) {
      peer(hello.rank) = std::move(arrival.socket);
      places_[static_cast<std::size_t>(hello.rank)] = " (" + arrival.who + ")";
      return true;
    }
    extra_ = std::move(arrival.socket);
    const std::string number = std::to_string(hello.rank);
    if (hello.num_ranks != num_ranks_) {
      end_meeting(kInvalidArgument, "num_ranks is " + std::to_string(hello.num_ranks) + " in " +
                                        arrival.who + " (rank " + number + ")" + group() +
                                        "; allowed: " + std::to_string(num_ranks_) +
                                        ", as rank 0 has it");
    }
    end_meeting(kInvalidArgument, "rank is " + number + " in " + arrival.who + group() +
                                      ", which another process holds; allowed: each rank once");
  }

  void arrive() {
    const Deadline end = deadline();
    StreamSocket& host = peer(0);
    for (;;) {
      if (auto socket = place_->connect(end)) {
        host = std::move(*socket);
        break;
      }
      if (Clock::now() >= end) {
        throw CommError("rank 0" + group() + " did not arrive within " + limit_text() + "; rank " +
                            std::to_string(rank_) + " was waiting" + place_->obstacle(),
                        CommFailure::Timeout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    send(0, {}, end);
    // Rank 0 waits for the others from now at the latest, and then says who is missing.
    receive(0, deadline() + std::chrono::seconds(1));
  }

  std::string missing_ranks() const {
    std::string names;
    for (std::int32_t other = 1; other < num_ranks_; ++other) {
      if (peers_[static_cast<std::size_t>(other)].is_open()) continue;
      names += (names.empty() ? "rank " : ", rank ") + std::to_string(other);
    }
    return names;
  }

  Gathered gather_and_spread(std::span<const std::byte> bytes) {
    const Deadline end = deadline();
    Gathered all(static_cast<std::size_t>(num_ranks_));
    all[0].assign(bytes.begin(), bytes.end());
    for (std::int32_t other = 1; other < num_ranks_; ++other) {
      all[static_cast<std::size_t>(other)] = receive(other, end);
    }
    for (std::int32_t other = 1; other < num_ranks_; ++other) {
      for (const auto& each : all) send(other, each, end);
    }
    return all;
  }

  Gathered give_and_take(std::span<const std::byte> bytes) {
    const Deadline end = deadline() + std::chrono::seconds(1);
    send(0, bytes, end);
    Gathered all;
    for (std::int32_t other = 0; other < num_ranks_; ++other) all.push_back(receive(0, end));
    return all;
  }

  void send(std::int32_t to, std::span<const std::byte> bytes, Deadline end) {
    const FrameHeader header{.rank = rank_, .num_ranks = num_ranks_, .num_bytes = bytes.size()};
    check(to, peer(to).send_value(header, end));
    check(to, peer(to).send_all(bytes, end));
  }

  std::vector<std::byte> receive(std::int32_t from, Deadline end) {
    FrameHeader header;
    check(from, peer(from).receive_value(header, end));
    if (header.magic != kMeetingMagic || header.num_bytes > kMaxFrameBytes) {
      end_meeting(static_cast<std::int32_t>(CommFailure::System),
                  "rank " + std::to_string(from) + group() + " sent what is no message");
    }
    std::vector<std::byte> bytes(header.num_bytes);
    check(from, peer(from).receive_all(bytes, end));
    if (header.failure == 0) return bytes;
    close_all();
    throw_failure(header.failure,
                  std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

  void check(std::int32_t other, StreamSocket::Result result) {
    if (result == StreamSocket::Result::Done) return;
    const std::string who =
        "rank " + std::to_string(other) + places_[static_cast<std::size_t>(other)] + group();
    if (result == StreamSocket::Result::Timeout) {
      end_meeting(static_cast<std::int32_t>(CommFailure::Timeout),
                  who + " did not answer rank " + std::to_string(rank_) + " within " +
                      limit_text() + " while the group started");
    }
    end_meeting(
        static_cast<std::int32_t>(CommFailure::PeerDied),
        who + " ended, or turned rank " + std::to_string(rank_) + " away, while the group started");
  }

  /// Tells everyone who is connected, so that all ranks give the same reason.
  [[noreturn]] void end_meeting(std::int32_t failure, const std::string& text) {
    const FrameHeader header{
        .failure = failure, .rank = rank_, .num_ranks = num_ranks_, .num_bytes = text.size()};
    const Deadline soon = Clock::now() + std::chrono::milliseconds(100);
    const auto report = [&](StreamSocket& socket) {
      if (!socket.is_open()) return;
      if (socket.send_value(header, soon) == StreamSocket::Result::Done) {
        socket.send_all(std::as_bytes(std::span(text.data(), text.size())), soon);
      }
    };
    for (StreamSocket& socket : peers_) report(socket);
    report(extra_);
    close_all();
    throw_failure(failure, text);
  }

  void close_all() noexcept {
    for (StreamSocket& socket : peers_) socket.close();
    extra_.close();
  }

  std::unique_ptr<MeetingPlace> place_;
  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::chrono::milliseconds limit_;
  std::vector<StreamSocket> peers_;
  std::vector<std::string> places_;  ///< [num_ranks], in words, of those that arrived here
  StreamSocket extra_;               ///< who came and has no place
};

}  // namespace

Bootstrap meet(std::unique_ptr<MeetingPlace> place, std::int32_t rank, std::int32_t num_ranks,
               std::chrono::milliseconds limit) {
  check_group_size(rank, num_ranks, {.deadline = limit});
  if (const std::string name = place->name(); name.empty() || name.size() > kMaxNameBytes) {
    throw invalid("name", "'" + name + "'", "1 to 80 characters");
  }
  const auto meeting = std::make_shared<Meeting>(std::move(place), rank, num_ranks, limit);
  if (num_ranks > 1) meeting->meet();
  return [meeting](std::span<const std::byte> bytes) { return meeting->allgather(bytes); };
}

}  // namespace magi::comm
