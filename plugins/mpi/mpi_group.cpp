// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_group.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

namespace magi::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLargestPiece = std::int64_t{1} << 30;  // counts of MPI are int
constexpr int kNumTags = 32767;                                // the least that MPI promises
constexpr int kPollsBeforeSleep = 2000;
constexpr std::chrono::seconds kSpinBudget{1};
constexpr std::size_t kAlarmBytes = 512;  // small enough that MPI sends it without a handshake
constexpr std::int32_t kTimeout = 1, kAborted = 4, kSystem = 5;

std::atomic<int> num_open{0};

/// MPI is called by one thread at a time.
std::recursive_mutex& mpi_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Texts that may be under way after their group: such a process is about to end.
std::deque<std::array<char, kAlarmBytes>>& alarm_texts() {
  static auto* texts = new std::deque<std::array<char, kAlarmBytes>>;
  return *texts;
}

/// Calls `piece(offset, count)` for the pieces of a part that a message may have.
template <typename Piece>
void for_pieces(std::int64_t size, Piece piece) {
  for (std::int64_t offset = 0; offset < size; offset += kLargestPiece) {
    piece(offset, static_cast<int>(std::min(kLargestPiece, size - offset)));
  }
}

}  // namespace

bool are_all_closed() { return num_open == 0; }

Group::Group(MPI_Comm communicator, std::chrono::milliseconds deadline) : deadline_(deadline) {
  ++num_open;
  MPI_Comm_dup(communicator, &data_);
  MPI_Comm_dup(communicator, &alarms_);
  MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(alarms_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(data_, &rank_);
  MPI_Comm_size(data_, &num_ranks_);
}

void Group::fail(std::int32_t failure, const std::string& text) {
  if (failure_ != 0) return;
  failure_ = failure;
  message_ = text;
}

bool Group::is_good(int code) {
  if (code == MPI_SUCCESS) return true;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail(kSystem, "MPI on rank " + std::to_string(rank_) + ": " + text.data());
  return false;
}

void Group::post(const magi_byte_exchange& exchange, Transfers& transfers, int tag) {
  auto* receive = static_cast<std::byte*>(exchange.receive);
  const auto* send = static_cast<const std::byte*>(exchange.send);
  const std::byte* own = nullptr;
  std::byte* own_place = nullptr;
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) {
      own = send;
      own_place = receive;
    } else {
      const auto add = [&](bool is_received) {
        transfers.are_received.push_back(is_received);
        transfers.peers.push_back(peer);
        return &transfers.requests.emplace_back(MPI_REQUEST_NULL);
      };
      for_pieces(exchange.receive_bytes[peer], [&](std::int64_t offset, int count) {
        is_good(MPI_Irecv(receive + offset, count, MPI_BYTE, peer, tag, data_, add(true)));
      });
      for_pieces(exchange.send_bytes[peer], [&](std::int64_t offset, int count) {
        is_good(MPI_Isend(send + offset, count, MPI_BYTE, peer, tag, data_, add(false)));
      });
    }
    receive += exchange.receive_bytes[peer];
    send += exchange.send_bytes[peer];
  }
  const auto own_bytes = static_cast<std::size_t>(exchange.send_bytes[rank_]);
  if (own_bytes > 0) std::memcpy(own_place, own, own_bytes);
}

std::int32_t Group::start(const magi_byte_exchange& exchange, Transfers& transfers) {
  const std::lock_guard lock(mpi_mutex());
  if (failure_ == 0 && exchange.device != -1) {
    fail(kSystem, "device is " + std::to_string(exchange.device) + "; allowed: -1, host memory");
  }
  if (failure_ == 0 && exchange.send_bytes[rank_] != exchange.receive_bytes[rank_]) {
    fail(kSystem,
         "a rank's bytes for itself differ: " + std::to_string(exchange.send_bytes[rank_]) +
             " sent, " + std::to_string(exchange.receive_bytes[rank_]) + " received");
  }
  if (failure_ != 0) return MAGI_VTABLE_COMM_ERROR;
  post(exchange, transfers, next_tag_);
  next_tag_ = (next_tag_ + 1) % kNumTags;
  return failure_ == 0 ? MAGI_VTABLE_OK : MAGI_VTABLE_COMM_ERROR;
}

bool Group::advance(Transfers& transfers) {
  if (transfers.requests.empty()) return true;
  std::vector<int> ended(transfers.requests.size());
  int num_ended = 0;
  const int code = MPI_Testsome(static_cast<int>(ended.size()), transfers.requests.data(),
                                &num_ended, ended.data(), MPI_STATUSES_IGNORE);
  if (!is_good(code) || num_ended == MPI_UNDEFINED || num_ended == 0) return false;
  Transfers left;
  for (std::size_t i = 0; i < transfers.requests.size(); ++i) {
    if (transfers.requests[i] == MPI_REQUEST_NULL) continue;
    left.requests.push_back(transfers.requests[i]);
    left.peers.push_back(transfers.peers[i]);
    left.are_received.push_back(transfers.are_received[i]);
  }
  transfers = std::move(left);
  return true;
}

void Group::look_for_alarm() {
  int is_there = 0;
  MPI_Status status;
  if (!is_good(MPI_Iprobe(MPI_ANY_SOURCE, 0, alarms_, &is_there, &status)) || is_there == 0) return;
  std::array<char, kAlarmBytes> text{};
  is_good(MPI_Recv(text.data(), static_cast<int>(kAlarmBytes), MPI_BYTE, status.MPI_SOURCE, 0,
                   alarms_, MPI_STATUS_IGNORE));
  text.back() = 0;
  fail(kAborted, text.data());
}

std::string Group::missing(const Transfers& transfers) const {
  std::string names;
  for (const std::int32_t peer : std::set(transfers.peers.begin(), transfers.peers.end())) {
    names += (names.empty() ? "" : ", ") + std::to_string(peer);
  }
  return names;
}

std::int32_t Group::wait(Transfers& transfers) {
  Clock::time_point last = Clock::now();
  for (int polls = 0;; ++polls) {
    {
      const std::lock_guard lock(mpi_mutex());
      if (failure_ == 0 && advance(transfers)) {
        if (transfers.requests.empty()) return MAGI_VTABLE_OK;
        last = Clock::now();
        polls = 0;
      }
      if (failure_ == 0) look_for_alarm();
      if (failure_ == 0 && Clock::now() - last > deadline_) {
        fail(kTimeout, "rank " + std::to_string(rank_) + " waited " +
                           std::to_string(deadline_.count()) + " ms for bytes to or from rank " +
                           missing(transfers));
        notify_others();
      }
      if (failure_ != 0) return MAGI_VTABLE_COMM_ERROR;
    }
    if (polls < kPollsBeforeSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void Group::notify_others() {
  std::array<char, kAlarmBytes>& text = alarm_texts().emplace_back();
  message_.copy(text.data(), kAlarmBytes - 1);
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (peer == rank_ || MPI_Isend(text.data(), static_cast<int>(kAlarmBytes), MPI_BYTE, peer, 0,
                                   alarms_, &request) != MPI_SUCCESS) {
      continue;
    }
    MPI_Request_free(&request);
  }
}

void Group::abort(const std::string& reason) {
  const std::lock_guard lock(mpi_mutex());
  if (failure_ != 0 || data_ == MPI_COMM_NULL) return;
  fail(kAborted, "rank " + std::to_string(rank_) + " aborted: " + reason);
  notify_others();
}

/// A receive is cancelled, or has begun: then its sender is at it, which is awaited for a while. A
/// send that is left is one that its receiver has not asked for, and will not.
void Group::give_up(MPI_Request& request, bool is_received) {
  if (request == MPI_REQUEST_NULL) return;
  if (is_received) {
    MPI_Cancel(&request);
    const Clock::time_point start = Clock::now();
    int has_ended = 0;
    while (has_ended == 0 && Clock::now() - start < kSpinBudget) {
      MPI_Test(&request, &has_ended, MPI_STATUS_IGNORE);
    }
  }
  if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
}

void Group::drop(Transfers& transfers) {
  const std::lock_guard lock(mpi_mutex());
  if (transfers.requests.empty()) return;
  abort("an exchange ended before its bytes were there");
  for (std::size_t i = 0; i < transfers.requests.size(); ++i) {
    give_up(transfers.requests[i], transfers.are_received[i]);
  }
  transfers = {};
}

std::int32_t Group::close() {
  const std::lock_guard lock(mpi_mutex());
  if (failure_ != 0) return MAGI_VTABLE_COMM_ERROR;
  if (data_ == MPI_COMM_NULL) return MAGI_VTABLE_OK;
  MPI_Comm_free(&data_);
  MPI_Comm_free(&alarms_);
  --num_open;
  return MAGI_VTABLE_OK;
}

}  // namespace magi::mpi
