// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "comm/nccl/nccl_group.hpp"

// Groups over the NCCL of tests/comm/fake_nccl.cpp, with host memory in the place of a GPU's.
namespace magi::testing {

/// Paths of the library's builds.
std::string fake_nccl();
std::string old_nccl();
std::string nccl_without_send();

/// A device whose streams come to an end when the test lets them.
class FakeDevice final : public comm::CommDevice {
 public:
  explicit FakeDevice(std::string id) : id_(std::move(id)) {}
  std::int32_t ordinal() const override { return kCpuDevice; }
  std::string id() const override { return id_; }
  void run(const std::function<void()>& calls) const override { calls(); }
  void run_watch(const std::function<void()>& calls) const override { calls(); }
  std::unique_ptr<comm::StreamMark> mark(void* stream) const override;

  /// Marks that are made while it is set are not reached before it is cleared.
  mutable std::atomic<bool> is_stuck = false;

 private:
  std::string id_;
  mutable std::int64_t num_marks_ = 0;  ///< of the one thread that exchanges
};

/// A bootstrap over another group's allgather.
Bootstrap bootstrap_over(Communicator& group);

/// One rank of a group; `boot` has its ranks.
std::unique_ptr<Communicator> make_fake_nccl_group(
    Communicator& boot, const NcclOptions& options,
    const std::shared_ptr<const FakeDevice>& device = nullptr);

}  // namespace magi::testing
