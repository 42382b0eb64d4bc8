// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "comm/rows/row_layout.hpp"
#include "comm/rows/row_memory.hpp"

// Host memory: everything is done when a call returns.
namespace magi::comm {
namespace {

class HostTransfer final : public PendingRows {
 public:
  explicit HostTransfer(std::unique_ptr<PendingExchange> pending) : pending_(std::move(pending)) {}
  void await(void* /*stream*/) override { pending_->wait_sync(); }

 private:
  std::unique_ptr<PendingExchange> pending_;
};

template <typename Value>
void maximise_as(const TensorView& rows, const TensorView& values) {
  auto* top = static_cast<Value*>(values.data);
  const auto* row = static_cast<const Value*>(rows.data);
  const auto* end = row + rows.num_elements();
  std::copy_n(row, values.shape[0], top);
  while ((row += values.shape[0]) < end) {
    std::transform(top, top + values.shape[0], row, top,
                   [](Value a, Value b) { return std::max(a, b); });
  }
}

class HostMemory final : public RowMemory {
 public:
  std::shared_ptr<std::byte> allocate(std::int64_t size_bytes, void* /*stream*/) override {
    constexpr std::align_val_t kCacheLine{64};
    auto* data = ::operator new(static_cast<std::size_t>(size_bytes), kCacheLine);
    return {static_cast<std::byte*>(data),
            [](std::byte* memory) { ::operator delete(memory, kCacheLine); }};
  }

  RowTasks tasks_of(const RowTable& table, void* /*stream*/) override { return host_tasks(table); }

  void copy(const RowSide& from, const RowSide& to, std::span<const RowTask> tasks,
            void* /*stream*/) override {
    const RowLayout source(from.tensors);
    const RowLayout target(to.tensors);
    const std::size_t row_bytes = source.row_bytes();
    std::vector<std::byte> rows(from.wire || to.wire ? 0 : row_bytes * kRowsPerTask);
    for (const RowTask& task : tasks) {
      const auto on_wire = static_cast<std::size_t>(task.wire_row) * row_bytes;
      std::byte* held = to.wire ? to.wire + on_wire : from.wire ? from.wire + on_wire : rows.data();
      if (!from.wire) source.pack(task.local_row, task.num_rows, held);
      if (!to.wire) target.unpack(from.wire ? task.local_row : task.wire_row, task.num_rows, held);
    }
  }

  void combine(const Partials& partials, void* /*stream*/) override {
    MAGI_CHECK(partials.rounded.empty());
    combine_on_host(partials);
  }

  void maximise(const TensorView& rows, const TensorView& values, void* /*stream*/) override {
    if (values.dtype == DType::Float64) return maximise_as<double>(rows, values);
    maximise_as<float>(rows, values);
  }

  std::unique_ptr<PendingRows> start(Communicator& group, const ByteExchange& exchange,
                                     void* /*stream*/) override {
    return std::make_unique<HostTransfer>(group.start_bytes(exchange));
  }
};

}  // namespace

std::shared_ptr<RowMemory> make_host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace magi::comm
