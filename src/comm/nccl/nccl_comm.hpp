// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/nccl/nccl_library.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// NCCL's communicator of one rank. It does not block: a call that would is begun, and its end is
/// asked for again and again. So calls may come from several threads, one after the other, and
/// none waits for a peer while it keeps the others out.
class NcclComm {
 public:
  /// Called while something is awaited; throws to end the wait.
  using Check = std::function<void()>;

  NcclComm(std::shared_ptr<const NcclLibrary> library, std::int32_t rank, std::int32_t num_ranks);
  /// Aborts what is still there.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Joins the communicator of `id` on the current device. Throws CommError.
  void init(const NcclUniqueId& id, std::int32_t max_ctas, const Check& check);
  /// Enqueues the exchange on `stream`. Throws CommError.
  void exchange(const ByteExchange& exchange, void* stream, const Check& check);
  /// The errors that NCCL found beside the calls.
  std::optional<CommError> async_error() const;
  /// Ends the communicator in order, when all that was enqueued is done. Throws CommError.
  void finalize(const Check& check);
  /// Ends it at once; kernels under way end too.
  void abort() noexcept;

 private:
  /// Waits until NCCL has done what was begun.
  void poll_until_done(const char* call, const Check& check);
  void check_result(NcclResult result, const char* call) const;
  CommError error_of(NcclResult result, const char* call) const;
  NcclResult enqueue(const ByteExchange& exchange, void* stream) const;
  void require_handle() const;

  std::shared_ptr<const NcclLibrary> library_;
  std::int32_t rank_;
  std::int32_t num_ranks_;
  mutable std::mutex calls_;
  NcclHandle handle_ = nullptr;  ///< null before init and after the end
};

}  // namespace magi::comm
