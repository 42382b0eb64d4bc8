// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_ranks.hpp"

namespace magi::testing {
namespace {

class FakeMark final : public comm::StreamMark {
 public:
  explicit FakeMark(const std::atomic<bool>* is_stuck) : is_stuck_(is_stuck) {}
  bool is_reached() const override { return is_stuck_ == nullptr || !is_stuck_->load(); }

 private:
  const std::atomic<bool>* is_stuck_;  ///< null: nothing holds it up
};

}  // namespace

std::string fake_nccl() { return MAGI_FAKE_NCCL; }
std::string old_nccl() { return MAGI_OLD_NCCL; }
std::string nccl_without_send() { return MAGI_NCCL_WITHOUT_SEND; }

std::unique_ptr<comm::StreamMark> FakeDevice::mark(void* /*stream*/) const {
  // What begins an exchange is reached: the stream has nothing else to do.
  const bool is_begin = (num_marks_++ % 2) == 0;
  return std::make_unique<FakeMark>(is_stuck && !is_begin ? &is_stuck : nullptr);
}

Bootstrap bootstrap_over(Communicator& group) {
  return [&group](std::span<const std::byte> bytes) { return group.allgather_sync(bytes); };
}

std::unique_ptr<Communicator> make_fake_nccl_group(
    Communicator& boot, const NcclOptions& options,
    const std::shared_ptr<const FakeDevice>& device) {
  NcclOptions given = options;
  if (given.library.empty()) given.library = fake_nccl();
  const auto make_device = [&]() -> std::shared_ptr<const comm::CommDevice> {
    if (device != nullptr) return device;
    return std::make_shared<FakeDevice>("gpu " + std::to_string(boot.rank()));
  };
  return comm::make_nccl_group_on(boot.rank(), boot.num_ranks(), make_device, bootstrap_over(boot),
                                  given);
}

}  // namespace magi::testing
