// SPDX-License-Identifier: Apache-2.0
#include "comm/window_group.hpp"

#include <utility>

#include "base/check.hpp"
#include "comm/validate.hpp"

namespace magi::comm {
namespace {

class WindowExchange final : public PendingExchange {
 public:
  WindowExchange(std::shared_ptr<Engine> engine, std::shared_ptr<Exchange> exchange)
      : engine_(std::move(engine)), exchange_(std::move(exchange)) {}
  ~WindowExchange() override { engine_->drop(*exchange_); }
  void wait_sync() override { engine_->wait_sync(*exchange_); }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Exchange> exchange_;
};

class WindowGroup final : public Communicator {
 public:
  WindowGroup(std::shared_ptr<Engine> engine, const char* backend,
              std::unique_ptr<DeviceTransport> device)
      : engine_(std::move(engine)), backend_(backend), device_(std::move(device)) {
    device_counters_.bytes_to_peer.resize(static_cast<std::size_t>(engine_->num_ranks()));
  }
  ~WindowGroup() override {
    if (!is_closed_) engine_->leave(RankState::Gone);
  }

  std::int32_t rank() const override { return engine_->rank(); }
  std::int32_t num_ranks() const override { return engine_->num_ranks(); }
  const char* backend() const override { return backend_; }
  CommCounters counters() const override {
    CommCounters counters = engine_->counters();
    counters.messages += device_counters_.messages;
    counters.casts += device_counters_.casts;
    counters.reduces += device_counters_.reduces;
    for (std::size_t peer = 0; peer < counters.bytes_to_peer.size(); ++peer) {
      counters.bytes_to_peer[peer] += device_counters_.bytes_to_peer[peer];
    }
    return counters;
  }
  void abort(const std::string& reason) noexcept override {
    if (device_ != nullptr) device_->abort(reason);
    engine_->abort(reason);
  }

  bool has_device_exchange() const override { return device_ != nullptr; }

  void all_to_all_v(const DeviceExchange& exchange, void* stream) override {
    if (device_ == nullptr) return Communicator::all_to_all_v(exchange, stream);
    check_device_exchange(exchange, num_ranks());
    try {
      device_->all_to_all_v(exchange, stream);
    } catch (const CommError& error) {
      engine_->abort(error.what());
      throw;
    }
    count(exchange);
  }

  std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) override {
    return gather_sync(ExchangeKind::AllGather, bytes);
  }

  std::unique_ptr<PendingExchange> group_cast(std::span<const TensorView> inputs,
                                              std::span<const TensorView> outputs,
                                              const RowExchange& rows, ExchangeTag tag) override {
    check_cast({inputs, outputs, rows, rank(), num_ranks()});
    return start(make_cast(rank(), inputs, outputs, rows, tag));
  }

  std::unique_ptr<PendingExchange> group_reduce(std::span<const TensorView> inputs,
                                                std::span<const TensorView> outputs,
                                                const RowExchange& rows, ReduceOp op,
                                                ExchangeTag tag) override {
    check_reduce({inputs, outputs, rows, rank(), num_ranks()}, op);
    return start(make_reduce(rank(), inputs, outputs, rows, op, tag));
  }

  void close_sync() override {
    if (is_closed_) return;
    if (!engine_->is_idle()) {
      throw InvalidArgument(
          "close_sync was called with an exchange under way; allowed: after every wait_sync");
    }
    gather_sync(ExchangeKind::Close, {});
    engine_->leave(RankState::Closed);
    engine_->release();
    is_closed_ = true;
  }

 private:
  std::unique_ptr<PendingExchange> start(std::shared_ptr<Exchange> exchange) {
    engine_->start(exchange);
    return std::make_unique<WindowExchange>(engine_, std::move(exchange));
  }

  std::vector<std::vector<std::byte>> gather_sync(ExchangeKind kind,
                                                  std::span<const std::byte> bytes) {
    const auto exchange = make_gather(rank(), num_ranks(), kind, bytes);
    engine_->start(exchange);
    engine_->wait_sync(*exchange);
    return std::move(exchange->gathered);
  }

  void count(const DeviceExchange& exchange) {
    if (exchange.purpose == ExchangePurpose::Other) return;
    (exchange.purpose == ExchangePurpose::Cast ? device_counters_.casts
                                               : device_counters_.reduces) += 1;
    for (std::size_t peer = 0; peer < exchange.send_bytes.size(); ++peer) {
      if (exchange.send_bytes[peer] == 0 || peer == static_cast<std::size_t>(rank())) continue;
      device_counters_.bytes_to_peer[peer] += exchange.send_bytes[peer];
      ++device_counters_.messages;
    }
  }

  std::shared_ptr<Engine> engine_;
  const char* backend_;
  std::unique_ptr<DeviceTransport> device_;
  CommCounters device_counters_;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_window_group(std::shared_ptr<Engine> engine, const char* backend,
                                                std::unique_ptr<DeviceTransport> device) {
  return std::make_unique<WindowGroup>(std::move(engine), backend, std::move(device));
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

std::vector<std::unique_ptr<Communicator>> make_thread_group_with(
    std::span<const EngineOptions> options) {
  const auto num_ranks = static_cast<std::int32_t>(options.size());
  const auto region = make_group_region(num_ranks, 0);
  auto transports = make_loopback_transports(num_ranks, options[0].comm);
  transports.resize(static_cast<std::size_t>(num_ranks));
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    group.push_back(
        make_window_group(std::make_shared<Engine>(rank, num_ranks, region, options[r], HasEnded{}),
                          "threads", std::move(transports[r])));
  }
  return group;
}

}  // namespace magi::comm

namespace magi {

std::vector<std::unique_ptr<Communicator>> make_thread_group(std::int32_t num_ranks,
                                                             const CommOptions& options) {
  comm::check_group_size(0, num_ranks, options);
  const std::vector<comm::EngineOptions> each(static_cast<std::size_t>(num_ranks),
                                              comm::EngineOptions{.comm = options});
  return comm::make_thread_group_with(each);
}

}  // namespace magi
