// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/links.hpp"

#include <numeric>

namespace magi::cli {
namespace {

std::int64_t size_of(const TensorView& tensor) {
  return tensor.num_elements() * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
}

}  // namespace

Link::Link(Communicator& group, RankDevice& device)
    : group_(group),
      device_(device),
      rows_(comm::make_row_exchanger(group, device.ordinal(), device.allocator())),
      memory_(comm::make_row_memory(device.ordinal(), device.allocator())) {}

std::int64_t Link::bytes_sent() const {
  const auto& bytes = group_.counters().bytes_to_peer;
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

Transfer Link::move(const comm::RowTable& table, ExchangeKind kind,
                    std::span<const TensorView> from, std::span<const TensorView> to) {
  void* stream = device_.stream();
  if (is_muted_) return {nullptr, stream};
  return {rows_->start(table, {.kind = kind, .from = from, .to = to}, stream), stream};
}

void Link::all_to_all(const std::vector<std::int32_t>& members, const TensorView& sent,
                      const TensorView& received) {
  if (is_muted_) return;
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(num_ranks()), 0);
  for (const std::int32_t member : members) {
    bytes[static_cast<std::size_t>(member)] = size_of(sent) / std::ssize(members);
  }
  const ByteExchange exchange{.send = sent.data,
                              .receive = received.data,
                              .send_bytes = bytes,
                              .receive_bytes = bytes,
                              .device = device_.ordinal(),
                              .kind = ExchangeKind::Cast};
  memory_->start(group_, exchange, device_.stream())->await(device_.stream());
}

void Link::pack(const comm::RowTable& table, std::span<const TensorView> tensors, std::byte* wire) {
  const auto tasks = memory_->tasks_of(table, device_.stream());
  memory_->copy({tensors}, {tensors, wire}, tasks.owned, device_.stream());
}

void Link::unpack(const comm::RowTable& table, std::byte* wire,
                  std::span<const TensorView> tensors) {
  const auto tasks = memory_->tasks_of(table, device_.stream());
  memory_->copy({tensors, wire}, {tensors}, tasks.owned, device_.stream());
}

}  // namespace magi::cli
