// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/ring_group.hpp"

#include <utility>

#include "comm/net/group_log.hpp"
#include "comm/net/group_size.hpp"

namespace magi::comm {
namespace {

class RingExchange final : public PendingExchange {
 public:
  RingExchange(std::shared_ptr<Engine> engine, std::shared_ptr<Exchange> exchange)
      : engine_(std::move(engine)), exchange_(std::move(exchange)) {}
  ~RingExchange() override { engine_->drop(*exchange_); }
  void wait_sync() override { engine_->wait_sync(*exchange_); }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Exchange> exchange_;
};

class RingGroup final : public Communicator {
 public:
  RingGroup(std::shared_ptr<Engine> engine, const char* backend,
            std::unique_ptr<DeviceTransport> device)
      : engine_(std::move(engine)), backend_(backend), device_(std::move(device)) {}
  ~RingGroup() override {
    if (!is_closed_) engine_->leave(RankState::Gone);
  }

  std::int32_t rank() const override { return engine_->rank(); }
  std::int32_t num_ranks() const override { return engine_->num_ranks(); }
  const char* backend() const override { return backend_; }
  void abort(const std::string& reason) noexcept override {
    if (device_ != nullptr) device_->abort(reason);
    engine_->abort(reason);
  }

  void check() const override { engine_->check_failure(); }

  bool has_device_exchange() const override { return device_ != nullptr; }

  std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) override {
    return gather_sync(CallKind::AllGather, bytes);
  }

  void close_sync() override {
    if (is_closed_) return;
    check();  // a group that has failed is told, not the exchanges that its failure left
    if (!engine_->is_idle()) {
      throw InvalidArgument(
          "close_sync was called with an exchange under way; allowed: after every wait_sync");
    }
    gather_sync(CallKind::Close, {});
    engine_->leave(RankState::Closed);
    engine_->release();
    is_closed_ = true;
  }

 protected:
  std::unique_ptr<PendingExchange> start_checked(const ByteExchange& bytes, void* stream) override {
    if (bytes.device != kCpuDevice) return exchange_on_device(bytes, stream);
    auto exchange = make_byte_exchange(rank(), bytes);
    engine_->start(exchange);
    return std::make_unique<RingExchange>(engine_, std::move(exchange));
  }

 private:
  std::unique_ptr<PendingExchange> exchange_on_device(const ByteExchange& bytes, void* stream) {
    try {
      device_->all_to_all_v(bytes, stream);
    } catch (const CommError& error) {
      engine_->abort(error.what());
      throw;
    }
    return nullptr;
  }

  std::vector<std::vector<std::byte>> gather_sync(CallKind kind, std::span<const std::byte> bytes) {
    const auto exchange = make_gather(rank(), num_ranks(), kind, bytes);
    engine_->start(exchange);
    engine_->wait_sync(*exchange);
    return std::move(exchange->gathered);
  }

  std::shared_ptr<Engine> engine_;
  const char* backend_;
  std::unique_ptr<DeviceTransport> device_;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_ring_group(std::shared_ptr<Engine> engine, const char* backend,
                                              std::unique_ptr<DeviceTransport> device) {
  return std::make_unique<RingGroup>(std::move(engine), backend, std::move(device));
}

std::shared_ptr<SharedRegion> make_group_region(std::int32_t num_ranks, std::uint64_t nonce) {
  const ControlLayout layout(num_ranks);
  auto region = SharedRegion::create(layout.num_bytes());
  GroupBlock& group = layout.group(region->map(0, layout.num_bytes()));
  group.magic = kRegionMagic;
  group.nonce = nonce;
  group.used_bytes.store(layout.num_bytes());
  region->unmap(0);
  return region;
}

std::vector<std::unique_ptr<Communicator>> make_thread_group_with(std::int32_t num_ranks,
                                                                  const EngineOptions& options) {
  check_group_size(0, num_ranks, options.comm);
  const auto region = make_group_region(num_ranks, 0);
  auto transports = make_loopback_transports(num_ranks, options.comm);
  transports.resize(static_cast<std::size_t>(num_ranks));
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    group.push_back(
        make_ring_group(std::make_shared<Engine>(rank, num_ranks, region, options, HasEnded{}),
                        "threads", std::move(transports[static_cast<std::size_t>(rank)])));
  }
  if (num_ranks > 1) log_group(*group[0], [] { return "all ranks are threads of this process"; });
  return group;
}

}  // namespace magi::comm

namespace magi {

std::vector<std::unique_ptr<Communicator>> make_thread_group(std::int32_t num_ranks,
                                                             const CommOptions& options) {
  return comm::make_thread_group_with(num_ranks, {.comm = options});
}

}  // namespace magi
