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
  RowTasks tasks_of(const RowTable& table, void* /*stream*/) override { return host_tasks(table); }

  std::shared_ptr<std::byte> allocate(std::int64_t size_bytes, void* /*stream*/) override {
    const auto memory =
        std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(size_bytes));
    return {memory, memory.get()};
  }

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
