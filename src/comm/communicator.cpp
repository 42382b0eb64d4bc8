// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/check.hpp"
#include "base/words.hpp"
#include "comm/rows/row_exchanger.hpp"
#include "comm/validate.hpp"
#include "magi/comm.hpp"

namespace magi {
namespace {

/// Device memory of the groups' own exchangers comes from the library's pool.
const DeviceAllocator kPool;

/// A group_cast or group_reduce under way.
class GroupExchange final : public PendingExchange {
 public:
  GroupExchange(Communicator& group, const comm::ExchangeArgs& args, const comm::RowMove& move,
                void* stream)
      : table_(args.rows, args.rank, args.num_ranks, comm::TableLife::OneMove),
        stream_(stream),
        rows_(group.row_exchanger(args.device).start(table_, move, stream)) {}
  void wait_sync() override { rows_->await(stream_); }

 private:
  comm::RowTable table_;
  void* stream_;
  std::unique_ptr<comm::PendingRows> rows_;
};

/// The device of a call: that of its tensors, where the group moves device memory. NOTE: those of
/// a rank without rows may have no data and lie there all the same.
std::int32_t device_of(const Communicator& group, std::span<const TensorView> inputs,
                       std::span<const TensorView> outputs) {
  if (!group.has_device_exchange()) return kCpuDevice;
  for (const auto& tensors : {inputs, outputs}) {
    for (const TensorView& tensor : tensors) {
      if (tensor.rank > 0 && tensor.device != kCpuDevice) return tensor.device;
    }
  }
  return kCpuDevice;
}

}  // namespace

Communicator::Communicator() = default;
Communicator::~Communicator() = default;

std::unique_ptr<PendingExchange> Communicator::group_cast(std::span<const TensorView> inputs,
                                                          std::span<const TensorView> outputs,
                                                          const RowExchange& rows, ExchangeTag tag,
                                                          void* stream) {
  const comm::ExchangeArgs args{inputs, outputs,     rows,
                                rank(), num_ranks(), device_of(*this, inputs, outputs)};
  comm::check_cast(args);
  const comm::RowMove move{.from = inputs, .to = outputs, .tag = tag};
  return std::make_unique<GroupExchange>(*this, args, move, stream);
}

std::unique_ptr<PendingExchange> Communicator::group_reduce(std::span<const TensorView> inputs,
                                                            std::span<const TensorView> outputs,
                                                            const RowExchange& rows,
                                                            ExchangeKind kind, ExchangeTag tag,
                                                            void* stream) {
  const comm::ExchangeArgs args{inputs, outputs,     rows,
                                rank(), num_ranks(), device_of(*this, inputs, outputs)};
  comm::check_reduce(args, kind);
  const comm::RowMove move{.kind = kind, .from = inputs, .to = outputs, .tag = tag};
  return std::make_unique<GroupExchange>(*this, args, move, stream);
}

std::unique_ptr<PendingExchange> Communicator::start_bytes(const ByteExchange& exchange,
                                                           void* stream) {
  if (exchange.device != kCpuDevice && !has_device_exchange()) {
    throw invalid("communicator", std::string("a ") + backend() + " group",
                  "a group that moves device memory");
  }
  comm::check_bytes(exchange, rank(), num_ranks());
  auto pending = start_checked(exchange, stream);
  if (exchange.kind != ExchangeKind::Other) count(exchange.kind, exchange.send_bytes);
  return pending;
}

void Communicator::count(ExchangeKind kind, std::span<const std::int64_t> bytes_to_peer) {
  counters();  // makes room
  ++(kind == ExchangeKind::Cast ? counters_.casts : counters_.reduces);
  for (std::size_t peer = 0; peer < bytes_to_peer.size(); ++peer) {
    if (bytes_to_peer[peer] == 0 || peer == static_cast<std::size_t>(rank())) continue;
    counters_.bytes_to_peer[peer] += bytes_to_peer[peer];
    ++counters_.messages;
  }
}

const CommCounters& Communicator::counters() const {
  counters_.bytes_to_peer.resize(static_cast<std::size_t>(num_ranks()));
  return counters_;
}

comm::RowExchanger& Communicator::row_exchanger(std::int32_t device) {
  std::shared_ptr<comm::RowExchanger>& exchanger = exchangers_[device];
  if (exchanger == nullptr) exchanger = comm::make_row_exchanger(*this, device, kPool);
  return *exchanger;
}

std::unique_ptr<comm::RowExchanger> Communicator::make_exchanger(
    std::int32_t /*device*/, const DeviceAllocator& /*allocator*/,
    const comm::ExchangerUse& /*use*/) {
  return nullptr;
}

void check_plan_digest_sync(Communicator& communicator, std::uint64_t digest) {
  const auto all = communicator.allgather_sync(std::as_bytes(std::span(&digest, 1)));
  std::uint64_t first = 0;
  std::string differing;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::uint64_t seen = 0;
    if (all[rank].size() != sizeof(seen)) {
      throw CommError("rank " + std::to_string(rank) + " gave " + std::to_string(all[rank].size()) +
                          " bytes as plan digest; expected 8",
                      CommFailure::PlanMismatch);
    }
    std::memcpy(&seen, all[rank].data(), sizeof(seen));
    if (rank == 0) first = seen;
    if (seen == first) continue;
    differing +=
        (differing.empty() ? "rank " : ", rank ") + std::to_string(rank) + " has plan " + hex(seen);
  }
  if (differing.empty()) return;
  throw CommError("ranks hold different plans: rank 0 has plan " + hex(first) + ", " + differing,
                  CommFailure::PlanMismatch);
}

}  // namespace magi
