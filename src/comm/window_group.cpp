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
  WindowGroup(std::shared_ptr<Engine> engine, const char* backend)
      : engine_(std::move(engine)), backend_(backend) {}
  ~WindowGroup() override {
    if (!is_closed_) engine_->leave(RankState::Gone);
  }

  std::int32_t rank() const override { return engine_->rank(); }
  std::int32_t num_ranks() const override { return engine_->num_ranks(); }
  const char* backend() const override { return backend_; }
  CommCounters counters() const override { return engine_->counters(); }
  void abort(const std::string& reason) noexcept override { engine_->abort(reason); }

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

  std::shared_ptr<Engine> engine_;
  const char* backend_;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_window_group(std::shared_ptr<Engine> engine,
                                                const char* backend) {
  return std::make_unique<WindowGroup>(std::move(engine), backend);
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
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    group.push_back(make_window_group(
        std::make_shared<Engine>(rank, num_ranks, region, options[static_cast<std::size_t>(rank)],
                                 HasEnded{}),
        "threads"));
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
