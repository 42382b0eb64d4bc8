// SPDX-License-Identifier: Apache-2.0
// What the runtime adds to the attention kernel on one GPU: the host's time for a call, and the
// rates at which rows are packed, put into order and added. One JSON line per figure.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <vector>

#include "comm/rows/row_layout.hpp"
#include "comm/rows/row_memory.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"

namespace magi {
namespace {

constexpr int kHeads = 8;
constexpr int kDim = 128;
constexpr int kChunk = 512;  // rows that follow each other in both orders

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Median device seconds of `work`.
double measure(const std::function<void(cudaStream_t)>& work) {
  const Stream stream;
  std::vector<double> seconds;
  for (int i = 0; i < 30; ++i) {
    const Event begin, end;
    begin.record(stream.handle());
    work(stream.handle());
    end.record(stream.handle());
    if (i >= 5) seconds.push_back(end.seconds_since_sync(begin));
    stream.wait_sync();
  }
  return median(seconds);
}

struct DeviceArray {
  DeviceArray(DType dtype, std::initializer_list<std::int64_t> shape) {
    view = contiguous_view(nullptr, dtype, shape);
    memory = DeviceBuffer(static_cast<std::size_t>(view.num_elements()) * dtype_bytes(dtype));
    memory.fill(0, nullptr);
    view.data = memory.data();
    view.device = 0;
  }
  DeviceBuffer memory;
  TensorView view;
};

/// Rows in chunks whose order on the wire is the reverse of the tensor's.
std::vector<PeerRows> reversed(std::int32_t rows) {
  std::vector<PeerRows> records;
  for (std::int32_t row = rows - kChunk; row >= 0; row -= kChunk) {
    records.push_back({.peer = 0, .row = row, .num_rows = kChunk});
  }
  return records;
}

void report(const char* name, double bytes, double seconds) {
  std::printf("{\"name\": \"%s\", \"us\": %.1f, \"GB_per_s\": %.0f}\n", name, seconds * 1e6,
              bytes / seconds * 1e-9);
}

void bench_rows(std::int32_t rows) {
  const DeviceArray k(DType::BFloat16, {rows, kHeads, kDim});
  const DeviceArray v(DType::BFloat16, {rows, kHeads, kDim});
  const TensorView pair[] = {k.view, v.view};
  const auto row_bytes = static_cast<std::int64_t>(comm::RowLayout(pair).row_bytes());
  const DeviceBuffer buffer(static_cast<std::size_t>(rows * row_bytes));
  auto* wire = static_cast<std::byte*>(buffer.data());
  const DeviceAllocator pool;
  const auto memory = comm::make_device_memory(0, pool);
  const comm::RowTable table({.owned = reversed(rows), .needed = reversed(rows)}, 1, 2);
  const comm::RowTasks tasks = memory->tasks_of(table, nullptr);
  const double bytes = 2.0 * static_cast<double>(rows * row_bytes);
  std::printf("{\"rows\": %d, \"bytes_per_row\": %lld}\n", rows, static_cast<long long>(row_bytes));
  report("pack", bytes, measure([&](cudaStream_t stream) {
           memory->copy({.tensors = pair}, {.tensors = pair, .wire = wire}, tasks.owned, stream);
         }));
  report("unpack", bytes, measure([&](cudaStream_t stream) {
           memory->copy({.tensors = pair, .wire = wire}, {.tensors = pair}, tasks.needed, stream);
         }));
}

/// Partials of 7 ranks for all rows.
void bench_sums(std::int32_t rows) {
  const DeviceArray dk(DType::Float32, {rows, kHeads, kDim});
  const DeviceArray dv(DType::Float32, {rows, kHeads, kDim});
  const TensorView pair[] = {dk.view, dv.view};
  std::vector<PeerRows> records;
  for (std::int32_t peer = 0; peer < 7; ++peer) records.push_back({peer, 0, rows});
  const DeviceAllocator pool;
  const auto memory = comm::make_device_memory(0, pool);
  const comm::RowTable table({.owned = records, .needed = {}}, 7, 8);
  const auto row_bytes = static_cast<std::int64_t>(comm::RowLayout(pair).row_bytes());
  const DeviceBuffer wire(static_cast<std::size_t>(7 * rows * row_bytes));
  wire.fill(0, nullptr);
  const comm::Partials partials{.to = pair,
                                .wire_types = comm::wire_types_of(pair, pair),
                                .wire = static_cast<std::byte*>(wire.data()),
                                .tasks = memory->tasks_of(table, nullptr)};
  report("add 7 partials", 9.0 * static_cast<double>(rows * row_bytes),
         measure([&](cudaStream_t stream) { memory->combine(partials, stream); }));
}

/// Host time of calls that one rank enqueues, without and with waiting for each.
void bench_calls(std::int32_t rows) {
  const Range all{0, rows};
  const auto plan = std::make_shared<const Plan>(make_plan(
      mask_from_window(all, all, {.left = -1, .right = 0}, rows, rows), {.num_heads_kv = 1}));
  const auto group = make_thread_group(1);
  DistributedAttention attention(plan, *group[0]);
  const DeviceArray q(DType::BFloat16, {rows, 1, kDim}), k(DType::BFloat16, {rows, 1, kDim});
  const DeviceArray out(DType::BFloat16, {rows, 1, kDim}), lse(DType::Float32, {rows, 1});
  const Stream stream;
  std::vector<double> enqueue, whole;
  for (int i = 0; i < 1100; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    attention.forward({.q = q.view, .k = k.view, .v = k.view, .sink = {}, .params = {}},
                      {.out = out.view, .lse = lse.view, .max_logits = {}}, stream.handle());
    const auto middle = std::chrono::steady_clock::now();
    stream.wait_sync();
    const auto end = std::chrono::steady_clock::now();
    if (i < 100) continue;
    enqueue.push_back(std::chrono::duration<double>(middle - begin).count());
    whole.push_back(std::chrono::duration<double>(end - begin).count());
  }
  std::printf(
      "{\"name\": \"forward, 1 rank, %d rows\", \"enqueue_us\": %.1f, \"whole_us\": %.1f}\n", rows,
      median(enqueue) * 1e6, median(whole) * 1e6);
}

}  // namespace
}  // namespace magi

int main() {
  if (magi::device_count() == 0) {
    std::printf("no GPU here: nothing measured\n");
    return 3;
  }
  magi::bench_calls(1);
  magi::bench_rows(8192);
  magi::bench_rows(65536);
  magi::bench_sums(8192);
  return 0;
}
