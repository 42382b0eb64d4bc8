// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/row_exchanger.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "comm/rows/row_layout.hpp"
#include "comm/rows/row_memory.hpp"

namespace magi::comm {
namespace {

const DeviceAllocator kPool;

/// Rows that stay: the owned and the needed ones name each other in order.
std::vector<RowTask> own_moves(const WireOrder& owned, const WireOrder& needed) {
  MAGI_CHECK(owned.num_own_rows == needed.num_own_rows);
  std::vector<RowTask> moves;
  auto source = owned.own_tasks.begin();
  for (RowTask target : needed.own_tasks) {
    while (target.num_rows > 0) {
      const std::int32_t passed = target.wire_row - source->wire_row;
      const std::int32_t count = std::min(target.num_rows, source->num_rows - passed);
      moves.push_back({source->local_row + passed, target.local_row, count});
      target = {target.local_row + count, target.wire_row + count, target.num_rows - count};
      if (passed + count == source->num_rows) ++source;
    }
  }
  return moves;
}

RowExchange everyone_to_everyone(std::int32_t num_ranks) {
  RowExchange rows;
  for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
    rows.owned.push_back({.peer = peer, .row = 0, .num_rows = 1});
    rows.needed.push_back({.peer = peer, .row = peer, .num_rows = 1});
  }
  return rows;
}

}  // namespace

RowTable::RowTable(const RowExchange& given, std::int32_t rank, std::int32_t num_ranks,
                   TableLife given_life)
    : rows(given),
      owned(wire_order(rows.owned, rank, num_ranks)),
      needed(wire_order(rows.needed, rank, num_ranks)),
      own(own_moves(owned, needed)),
      life(given_life) {}

const SumTable& RowTable::sums() const {
  if (!sums_) sums_ = sum_table(owned);
  return *sums_;
}

RowTasks host_tasks(const RowTable& table) {
  return {.owned = table.owned.tasks,
          .needed = table.needed.tasks,
          .own = table.own,
          .own_partials = table.needed.own_tasks,
          .sums = table.sums().tasks,
          .parts = table.sums().parts,
          .num_sum_rows = table.sums().num_rows()};
}

std::byte* find_wire(std::span<const TensorView> tensors, const WireOrder& order) {
  if (!order.shift.has_value() || order.num_rows == 0) return nullptr;
  const RowLayout layout(tensors);
  std::byte* data = layout.tensors().front().data;
  std::int64_t offset = 0;
  for (const TensorRows& rows : layout.tensors()) {
    const bool is_in_place = rows.data == data + offset && rows.run_elements == rows.num_elements &&
                             rows.row_stride_bytes == static_cast<std::int64_t>(layout.row_bytes());
    if (!is_in_place) return nullptr;
    offset += static_cast<std::int64_t>(rows.num_elements * dtype_bytes(rows.dtype));
  }
  return data + *order.shift * offset;
}

std::shared_ptr<RowMemory> make_row_memory(std::int32_t device, const DeviceAllocator& allocator) {
  return device == kCpuDevice ? make_host_memory() : make_device_memory(device, allocator);
}

void move_own_rows(const RowTable& table, const RowMove& move, void* stream) {
  const auto memory = make_row_memory(move.from[0].device, kPool);
  memory->copy({move.from}, {move.to}, memory->tasks_of(table, stream).own, stream);
}

void maximise_rows(const TensorView& rows, const TensorView& values, void* stream) {
  if (!values.empty()) make_row_memory(values.device, kPool)->maximise(rows, values, stream);
}

RankMaximum::RankMaximum(std::int32_t rank, std::int32_t num_ranks)
    : table_(everyone_to_everyone(num_ranks), rank, num_ranks) {}

void RankMaximum::apply(RowExchanger& exchanger, const TensorView& values,
                        const TensorView& gathered, ExchangeTag tag, void* stream) const {
  const TensorView own =
      contiguous_view(values.data, values.dtype, {1, values.shape[0]}, values.device);
  const RowMove move{
      .kind = ExchangeKind::Other, .from = {&own, 1}, .to = {&gathered, 1}, .tag = tag};
  exchanger.start(table_, move, stream)->await(stream);
  maximise_rows(gathered, values, stream);
}

}  // namespace magi::comm
