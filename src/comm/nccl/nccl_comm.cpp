// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_comm.hpp"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace magi::comm {
namespace {

/// Most calls are done at once; one that waits for peers should not take a core.
void pause(std::int64_t num_polls) {
  constexpr std::int64_t kQuickPolls = 2000;
  if (num_polls < kQuickPolls) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool is_failure(NcclResult result) {
  return result != NcclResult::Success && result != NcclResult::InProgress;
}

}  // namespace

NcclComm::NcclComm(std::shared_ptr<const NcclLibrary> library, std::int32_t rank,
                   std::int32_t num_ranks)
    : library_(std::move(library)), rank_(rank), num_ranks_(num_ranks) {}

NcclComm::~NcclComm() { abort(); }

void NcclComm::init(const NcclUniqueId& id, std::int32_t max_ctas, const Check& check) {
  NcclConfig config;
  if (max_ctas > 0) config.max_ctas = max_ctas;
  constexpr const char* kCall = "ncclCommInitRankConfig";
  {
    const std::lock_guard lock(calls_);
    check_result(library_->comm_init_rank_config(&handle_, num_ranks_, id, rank_, &config), kCall);
  }
  poll_until_done(kCall, check);
}

NcclResult NcclComm::enqueue(const ByteExchange& exchange, void* stream) const {
  const auto* send = static_cast<const std::byte*>(exchange.send);
  auto* receive = static_cast<std::byte*>(exchange.receive);
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer) {
    const auto sent = static_cast<std::size_t>(exchange.send_bytes[static_cast<std::size_t>(peer)]);
    const auto received =
        static_cast<std::size_t>(exchange.receive_bytes[static_cast<std::size_t>(peer)]);
    if (sent > 0) {
      const auto result = library_->send(send, sent, NcclLibrary::kBytes, peer, handle_, stream);
      if (is_failure(result)) return result;
    }
    if (received > 0) {
      const auto result =
          library_->recv(receive, received, NcclLibrary::kBytes, peer, handle_, stream);
      if (is_failure(result)) return result;
    }
    send += sent;
    receive += received;
  }
  return NcclResult::Success;
}

void NcclComm::exchange(const ByteExchange& exchange, void* stream, const Check& check) {
  {
    const std::lock_guard lock(calls_);
    require_handle();
    check_result(library_->group_start(), "ncclGroupStart");
    const NcclResult enqueued = enqueue(exchange, stream);
    const NcclResult ended = library_->group_end();  // also after a failure: it began a group
    check_result(enqueued, "a send or receive");
    check_result(ended, "ncclGroupEnd");
  }
  // NOTE: only now is the work in the stream's order.
  poll_until_done("ncclGroupEnd", check);
}

std::optional<CommError> NcclComm::async_error() const {
  const std::lock_guard lock(calls_);
  if (handle_ == nullptr) return {};
  NcclResult state = NcclResult::Success;
  const NcclResult result = library_->comm_get_async_error(handle_, &state);
  if (is_failure(result)) return error_of(result, "ncclCommGetAsyncError");
  if (is_failure(state)) return error_of(state, "the communicator");
  return {};
}

void NcclComm::finalize(const Check& check) {
  {
    const std::lock_guard lock(calls_);
    if (handle_ == nullptr) return;
    check_result(library_->comm_finalize(handle_), "ncclCommFinalize");
  }
  poll_until_done("ncclCommFinalize", check);
  const std::lock_guard lock(calls_);
  // A communicator that has been finalized is destroyed by this rank alone.
  const NcclHandle handle = std::exchange(handle_, nullptr);
  if (handle != nullptr) check_result(library_->comm_destroy(handle), "ncclCommDestroy");
}

void NcclComm::abort() noexcept {
  const std::lock_guard lock(calls_);
  const NcclHandle handle = std::exchange(handle_, nullptr);
  // Whether it succeeds or not, nothing more can be done with the communicator.
  if (handle != nullptr) static_cast<void>(library_->comm_abort(handle));
}

void NcclComm::poll_until_done(const char* call, const Check& check) {
  for (std::int64_t num_polls = 0;; ++num_polls) {
    check();  // first: it knows why a communicator has ended
    {
      const std::lock_guard lock(calls_);
      require_handle();
      NcclResult state = NcclResult::Success;
      check_result(library_->comm_get_async_error(handle_, &state), "ncclCommGetAsyncError");
      check_result(state, call);
      if (state == NcclResult::Success) return;
    }
    pause(num_polls);
  }
}

void NcclComm::require_handle() const {
  if (handle_ != nullptr) return;
  throw CommError("rank " + std::to_string(rank_) + " uses a communicator of NCCL that has ended",
                  CommFailure::Aborted);
}

void NcclComm::check_result(NcclResult result, const char* call) const {
  if (is_failure(result)) throw error_of(result, call);
}

CommError NcclComm::error_of(NcclResult result, const char* call) const {
  std::string text = "rank " + std::to_string(rank_) + ": NCCL failed in " + call + ": " +
                     library_->get_error_string(result);
  const char* last = library_->get_last_error(handle_);
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  const bool is_remote = result == NcclResult::RemoteError;
  return {text, is_remote ? CommFailure::PeerDied : CommFailure::System};
}

}  // namespace magi::comm
