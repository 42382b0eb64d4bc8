// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/comm_device.hpp"
#include "comm/nccl/nccl_comm.hpp"
#include "comm/net/failure_channel.hpp"
#include "comm/net/first_failure.hpp"

namespace magi::comm {

/// An exchange that a stream has been given.
struct NcclFlight {
  std::int64_t sequence = 0;
  ExchangeKind kind = ExchangeKind::Other;
  ExchangeTag tag;
  std::vector<std::int32_t> peers;         ///< those that send or receive
  std::unique_ptr<StreamMark> begin, end;  ///< null during a capture
  std::optional<Deadline> deadline = {};   ///< known once `begin` has been seen
};

/// A thread that watches one rank's communicator: exchanges that outlast their deadline, what NCCL
/// reports beside the calls, ranks that end, ranks that abort. The first failure is the group's: it
/// is told to the other ranks, the communicator is aborted, and every later call throws it.
class NcclWatch {
 public:
  NcclWatch(std::shared_ptr<NcclComm> comm, std::shared_ptr<const CommDevice> device,
            std::unique_ptr<FailureChannel> alarms, std::int32_t rank,
            std::chrono::milliseconds deadline);
  /// Stops, and aborts the communicator where the group has failed.
  ~NcclWatch();

  /// Throws the group's failure.
  void throw_failure() const { failure_.check(); }
  /// The first failure counts; whether this is it. From any thread.
  bool fail(const CommError& error) noexcept;
  /// Fails as the bootstrap did, unless another rank tells why meanwhile: a rank that ends behind a
  /// failure tells that first, but its end may be seen first.
  void fail_as_bootstrap(const CommError& error) noexcept;
  /// Fails as this rank has aborted the group.
  void abort(const std::string& reason) noexcept;
  void add(NcclFlight flight);
  /// "rank 0, rank 2 in stage 1 of group_cast 5, plan 0x..."
  std::string describe(const NcclFlight& flight) const;
  /// Waits until no exchange is under way on the GPU, or the group fails.
  void drain_sync();
  /// Tells the other ranks that this one goes in order, and stops.
  void leave() noexcept;

 private:
  void run();
  /// Fails as a look at the group has found.
  void fail_as_found(const CommError& error) noexcept;
  /// Fails with a text of this rank.
  bool fail_with(const char* what, const char* reason, CommFailure failure) noexcept;
  void inspect();
  /// Drops flights that have ended; the error of one that outlasted its deadline.
  std::optional<CommError> inspect_flights();
  void end_group();
  void wait_for_last_flights();
  /// Wakes who waits for a failure.
  void wake() noexcept;
  void stop() noexcept;

  std::shared_ptr<NcclComm> comm_;
  std::shared_ptr<const CommDevice> device_;
  std::unique_ptr<FailureChannel> alarms_;
  const std::int32_t rank_;
  const std::chrono::milliseconds deadline_;
  FirstFailure failure_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<NcclFlight> flights_;
  std::atomic<bool> is_stopping_ = false;
  bool has_ended_ = false;  ///< of the thread: the communicator was aborted
  std::thread thread_;
};

}  // namespace magi::comm
