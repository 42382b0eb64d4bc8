// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/check.hpp"
#include "comm/net/group_log.hpp"
#include "comm/net/group_size.hpp"
#include "comm/nvlink/peer_exchanger.hpp"
#include "comm/nvlink/peer_link.hpp"

namespace magi::comm {
namespace {

class NvlinkGroup final : public Communicator {
 public:
  NvlinkGroup(std::shared_ptr<Communicator> base, std::int32_t device, const CommOptions& options)
      : base_(std::move(base)), link_(std::make_shared<PeerLink>(*base_, device, options)) {
    log_group(*this, [&] {
      return "GPU " + std::to_string(device) +
             " writes rows into the others' memory; host memory moves over " + base_->backend();
    });
  }

  std::int32_t rank() const override { return base_->rank(); }
  std::int32_t num_ranks() const override { return base_->num_ranks(); }
  const char* backend() const override { return "nvlink"; }
  bool has_device_exchange() const override { return true; }
  bool compares_plans() const override { return true; }

  std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) override {
    return base_->allgather_sync(bytes);
  }
  void abort(const std::string& reason) noexcept override {
    link_->abort(reason);
    base_->abort(reason);
  }
  void close_sync() override { base_->close_sync(); }
  void check() const override {
    link_->check();
    base_->check();
  }

  std::unique_ptr<RowExchanger> make_exchanger(std::int32_t device,
                                               const DeviceAllocator& allocator,
                                               const ExchangerUse& use) override {
    // A single move would first have to gather all ranks' rows; moves of bytes need not.
    if (device == kCpuDevice || (!use.has_passes && base_->has_device_exchange())) return nullptr;
    check_device(device);
    const auto count_move = [this](ExchangeKind kind, std::span<const std::int64_t> bytes_to_peer) {
      count(kind, bytes_to_peer);
    };
    return make_peer_exchanger(link_, allocator, use.beside_sms, count_move);
  }

 protected:
  std::unique_ptr<PendingExchange> start_checked(const ByteExchange& exchange,
                                                 void* stream) override {
    if (exchange.device != kCpuDevice) check_device(exchange.device);
    return base_->start_bytes(exchange, stream);
  }

 private:
  void check_device(std::int32_t device) const {
    if (device == link_->device()) return;
    throw invalid("device", device, std::to_string(link_->device()) + " (the group's)");
  }

  std::shared_ptr<Communicator> base_;
  std::shared_ptr<PeerLink> link_;  ///< ends before base_
};

}  // namespace
}  // namespace magi::comm

namespace magi {

std::unique_ptr<Communicator> make_nvlink_group(std::shared_ptr<Communicator> base,
                                                std::int32_t device, const CommOptions& options) {
  if (base == nullptr) throw invalid("base", "null", "a group");
  comm::check_group_size(base->rank(), base->num_ranks(), options);
  return std::make_unique<comm::NvlinkGroup>(std::move(base), device, options);
}

}  // namespace magi
