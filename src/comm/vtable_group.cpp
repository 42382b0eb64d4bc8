// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "comm/validate.hpp"
#include "comm/vtable_convert.hpp"
#include "magi/comm.hpp"
#include "magi/comm_vtable.h"

// A communicator over a caller's table of C functions.
namespace magi {
namespace {

using comm::to_c;

/// Owner of the caller's context; exchanges under way keep it alive.
struct Supplied {
  explicit Supplied(const magi_comm_vtable& table) {
    std::memcpy(&vtable, &table, std::min(table.struct_size, sizeof(vtable)));
  }
  ~Supplied() { vtable.destroy(vtable.context); }
  Supplied(const Supplied&) = delete;
  Supplied& operator=(const Supplied&) = delete;

  void check(std::int32_t status) const {
    if (status == MAGI_VTABLE_OK) return;
    std::int32_t failure = 0;
    const char* text = vtable.last_error(vtable.context, &failure);
    comm::throw_status(status, failure, text != nullptr ? text : "the supplied group failed");
  }

  magi_comm_vtable vtable{};  ///< entries that the caller's table is too short for are null
};

class SuppliedExchange final : public PendingExchange {
 public:
  SuppliedExchange(std::shared_ptr<Supplied> group, void* exchange)
      : group_(std::move(group)), exchange_(exchange) {}
  ~SuppliedExchange() override { group_->vtable.release(group_->vtable.context, exchange_); }
  void wait_sync() override {
    group_->check(group_->vtable.wait(group_->vtable.context, exchange_));
  }

 private:
  std::shared_ptr<Supplied> group_;
  void* exchange_;
};

void take_gathered(void* sink_context, std::int32_t rank, const void* bytes,
                   std::size_t num_bytes) {
  auto& all = *static_cast<std::vector<std::vector<std::byte>>*>(sink_context);
  const auto* data = static_cast<const std::byte*>(bytes);
  if (rank >= 0 && static_cast<std::size_t>(rank) < all.size() && num_bytes > 0) {
    all[static_cast<std::size_t>(rank)].assign(data, data + num_bytes);
  }
}

class SuppliedGroup final : public Communicator {
 public:
  explicit SuppliedGroup(const magi_comm_vtable& vtable)
      : group_(std::make_shared<Supplied>(vtable)) {}

  std::int32_t rank() const override { return group_->vtable.rank; }
  std::int32_t num_ranks() const override { return group_->vtable.num_ranks; }
  const char* backend() const override { return group_->vtable.backend; }

  std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) override {
    std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(num_ranks()));
    group_->check(
        group_->vtable.allgather(context(), bytes.data(), bytes.size(), take_gathered, &all));
    return all;
  }

  std::unique_ptr<PendingExchange> group_cast(std::span<const TensorView> inputs,
                                              std::span<const TensorView> outputs,
                                              const RowExchange& rows, ExchangeTag tag) override {
    return start(inputs, outputs, rows, MAGI_EXCHANGE_CAST, tag);
  }

  std::unique_ptr<PendingExchange> group_reduce(std::span<const TensorView> inputs,
                                                std::span<const TensorView> outputs,
                                                const RowExchange& rows, ReduceOp op,
                                                ExchangeTag tag) override {
    return start(inputs, outputs, rows, comm::exchange_kind(op), tag);
  }

  bool has_device_exchange() const override { return group_->vtable.all_to_all_v != nullptr; }

  void all_to_all_v(const DeviceExchange& exchange, void* stream) override {
    if (!has_device_exchange()) return Communicator::all_to_all_v(exchange, stream);
    comm::check_device_exchange(exchange, num_ranks());
    const magi_all_to_all_args args{.struct_size = sizeof(magi_all_to_all_args),
                                    .send = exchange.send,
                                    .receive = exchange.receive,
                                    .send_bytes = exchange.send_bytes.data(),
                                    .receive_bytes = exchange.receive_bytes.data(),
                                    .device = exchange.device,
                                    .kind = static_cast<std::int32_t>(exchange.purpose),
                                    .plan_digest = exchange.tag.plan_digest,
                                    .wave = exchange.tag.wave};
    group_->check(group_->vtable.all_to_all_v(context(), &args, stream));
  }

  void abort(const std::string& reason) noexcept override {
    group_->vtable.abort(context(), reason.c_str());
  }

  CommCounters counters() const override {
    CommCounters counters;
    counters.bytes_to_peer.resize(static_cast<std::size_t>(num_ranks()));
    magi_exchange_counters filled{.struct_size = sizeof(magi_exchange_counters),
                                  .bytes_to_peer = counters.bytes_to_peer.data()};
    group_->check(group_->vtable.counters(group_->vtable.context, &filled));
    counters.messages = filled.messages;
    counters.casts = filled.casts;
    counters.reduces = filled.reduces;
    return counters;
  }

  void close_sync() override { group_->check(group_->vtable.close(context())); }

 private:
  void* context() { return group_->vtable.context; }

  std::unique_ptr<PendingExchange> start(std::span<const TensorView> inputs,
                                         std::span<const TensorView> outputs,
                                         const RowExchange& rows, std::int32_t kind,
                                         ExchangeTag tag) {
    if (inputs.size() != outputs.size()) {
      throw invalid("outputs", std::to_string(outputs.size()) + " tensors",
                    "as many as inputs, " + std::to_string(inputs.size()));
    }
    const std::vector<magi_tensor> from = to_c(inputs);
    const std::vector<magi_tensor> to = to_c(outputs);
    const std::vector<magi_peer_rows> owned = to_c(rows.owned);
    const std::vector<magi_peer_rows> needed = to_c(rows.needed);
    const magi_exchange_args args{.struct_size = sizeof(magi_exchange_args),
                                  .inputs = from.data(),
                                  .outputs = to.data(),
                                  .num_tensors = static_cast<std::int32_t>(from.size()),
                                  .kind = kind,
                                  .owned = owned.data(),
                                  .num_owned = static_cast<std::int64_t>(owned.size()),
                                  .needed = needed.data(),
                                  .num_needed = static_cast<std::int64_t>(needed.size()),
                                  .plan_digest = tag.plan_digest,
                                  .wave = tag.wave};
    void* exchange = nullptr;
    group_->check(group_->vtable.start(context(), &args, &exchange));
    return std::make_unique<SuppliedExchange>(group_, exchange);
  }

  std::shared_ptr<Supplied> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_vtable_group(const magi_comm_vtable& vtable) {
  if (vtable.struct_size < MAGI_COMM_VTABLE_MIN_SIZE) {
    throw invalid("vtable.struct_size", vtable.struct_size,
                  std::to_string(MAGI_COMM_VTABLE_MIN_SIZE) + " or more");
  }
  if (vtable.num_ranks < 1) throw invalid("vtable.num_ranks", vtable.num_ranks, "1 or more");
  if (vtable.rank < 0 || vtable.rank >= vtable.num_ranks) {
    throw invalid("vtable.rank", vtable.rank, "0 to " + std::to_string(vtable.num_ranks - 1));
  }
  const bool is_complete = vtable.backend != nullptr && vtable.allgather != nullptr &&
                           vtable.start != nullptr && vtable.wait != nullptr &&
                           vtable.release != nullptr && vtable.abort != nullptr &&
                           vtable.counters != nullptr && vtable.close != nullptr &&
                           vtable.destroy != nullptr && vtable.last_error != nullptr;
  if (!is_complete)
    throw invalid("vtable", "a table with a null entry", "all entries set but all_to_all_v");
  return std::make_unique<SuppliedGroup>(vtable);
}

}  // namespace magi
