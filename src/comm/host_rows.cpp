// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "comm/packed_exchanger.hpp"
#include "comm/row_layout.hpp"
#include "comm/row_sink.hpp"

// Packed exchanges in host memory: everything is done when a call returns.
namespace magi::comm {
namespace {

class HostTransfer final : public Transfer {
 public:
  explicit HostTransfer(std::unique_ptr<PendingExchange> pending) : pending_(std::move(pending)) {}
  void await(void* /*stream*/) override { pending_->wait_sync(); }

 private:
  std::unique_ptr<PendingExchange> pending_;
};

class HostMemory final : public RowMemory {
 public:
  RowTasks tasks_of(const RowTable& table, void* /*stream*/) override {
    return {table.owned.tasks,      table.needed.tasks, table.own,
            table.needed.own_tasks, table.sums.tasks,   table.sums.parts};
  }

  std::shared_ptr<std::byte> allocate(std::int64_t size_bytes, void* /*stream*/) override {
    const auto memory =
        std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(size_bytes));
    return {memory, memory.get()};
  }

  void pack(std::span<const TensorView> from, std::byte* wire, std::span<const RowTask> tasks,
            void* /*stream*/) override {
    const RowLayout layout(from);
    for (const RowTask& task : tasks) {
      layout.pack(task.local_row, task.num_rows, wire + task.wire_row * layout.row_bytes());
    }
  }

  void unpack(const std::byte* wire, std::span<const TensorView> to, std::span<const RowTask> tasks,
              void* /*stream*/) override {
    const RowLayout layout(to);
    for (const RowTask& task : tasks) {
      layout.unpack(task.local_row, task.num_rows, wire + task.wire_row * layout.row_bytes());
    }
  }

  void copy(std::span<const TensorView> from, std::span<const TensorView> to,
            std::span<const RowTask> tasks, void* /*stream*/) override {
    if (tasks.empty()) return;
    const RowLayout source(from);
    const RowLayout target(to);
    std::vector<std::byte> rows(source.row_bytes() * kRowsPerTask);
    for (const RowTask& task : tasks) {
      source.pack(task.local_row, task.num_rows, rows.data());
      target.unpack(task.wire_row, task.num_rows, rows.data());
    }
  }

  void combine(const Partials& partials, void* /*stream*/) override {
    const auto& [kind, to, wire_types, wire, tasks] = partials;
    const std::size_t row_bytes = wire_row_bytes(to, wire_types);
    const auto sink = make_reduce_sink(to, tasks.sums, kind);
    for (const SumTask& task : tasks.sums) {
      for (std::int32_t p = 0; p < task.num_parts; ++p) {
        const auto row = static_cast<std::size_t>(tasks.parts[task.first_part + p]);
        sink->put(wire_types, {task.row, task.num_rows}, wire + row * row_bytes);
      }
    }
    sink->finish();
  }

  std::unique_ptr<Transfer> start(Communicator& group, const ByteExchange& exchange,
                                  void* /*stream*/) override {
    return std::make_unique<HostTransfer>(group.start_bytes(exchange));
  }
};

}  // namespace

std::shared_ptr<RowMemory> make_host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace magi::comm
