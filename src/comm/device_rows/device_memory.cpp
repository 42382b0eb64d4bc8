// SPDX-License-Identifier: Apache-2.0
#include "comm/device_rows/device_memory.hpp"

#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream_buffer.hpp"

namespace magi::comm {
namespace {

/// Bytes between the packing and what follows it on the caller's streams. What the start took is
/// given back on its stream: behind the transport, which may still read and write there, and behind
/// what took the rows on another stream.
class DeviceTransfer final : public PendingRows {
 public:
  /// Allocates on the current device.
  DeviceTransfer(std::shared_ptr<Stream> transport, std::int32_t device, cudaStream_t stream)
      : transport_(std::move(transport)), device_(device), start_(stream), last_(stream) {}
  ~DeviceTransfer() override {
    if (last_ == start_) return;
    on_device_or_drop(device_, [this] { order(last_, start_); });
  }

  void run(Communicator& group, ByteExchange exchange) {
    order(start_, transport_->handle());
    last_ = transport_->handle();
    exchange.device = device_;
    group.start_bytes(exchange, last_);
    event_.record(last_);
  }

  void await(void* stream) override {
    const DeviceScope scope(device_);
    const bool is_sent = last_ != start_;
    last_ = queue_of(stream);
    if (is_sent) event_.await(last_);
    if (last_ != start_) order(start_, last_);  // after the rows that stay
  }

 private:
  void order(cudaStream_t before, cudaStream_t after) const {
    event_.record(before);
    event_.await(after);
  }

  std::shared_ptr<Stream> transport_;
  std::int32_t device_;
  cudaStream_t start_;
  cudaStream_t last_;  ///< the last one that uses the bytes: the transport's, where they are sent
  OrderEvent event_;
};

/// Calls visit(list) for each list.
template <typename Visit>
void for_each_list(RowTasks& tasks, const Visit& visit) {
  for (auto* list : {&tasks.owned, &tasks.needed, &tasks.own, &tasks.own_partials}) visit(*list);
  visit(tasks.sums);
  visit(tasks.parts);
}

}  // namespace

void DeviceMemory::keep_pool() {
  if (!allocator_.allocate && !lease_) lease_.emplace(device_);
}

void DeviceMemory::begin_call(void* stream) {
  const DeviceScope scope(device_);
  if (graph_of_capture(queue_of(stream)) != nullptr) return;  // a graph has an order of its own
  if (!calls_) calls_.emplace();
  calls_->begin(queue_of(stream));
}

void DeviceMemory::end_call(void* stream) noexcept {
  on_device_or_drop(device_, [&] {
    if (graph_of_capture(queue_of(stream)) == nullptr && calls_) calls_->end(queue_of(stream));
  });
}

std::shared_ptr<std::byte> DeviceMemory::allocate(std::int64_t size_bytes, void* stream) {
  const DeviceScope scope(device_);
  keep_pool();
  const auto memory = std::make_shared<StreamBuffer>(
      allocator_, static_cast<std::size_t>(size_bytes), device_, queue_of(stream));
  return {memory, static_cast<std::byte*>(memory->data())};
}

RowTasks DeviceMemory::tasks_of(const RowTable& table, void* stream) {
  std::shared_ptr<const DeviceTables>& tables = table.on_device[device_];
  if (tables == nullptr) tables = make_tables(table, stream);
  return tables->tasks;
}

std::unique_ptr<PendingRows> DeviceMemory::start(Communicator& group, const ByteExchange& exchange,
                                                 void* stream) {
  const DeviceScope scope(device_);
  keep_pool();
  if (transport_ == nullptr) transport_ = std::make_shared<Stream>();
  auto transfer = std::make_unique<DeviceTransfer>(transport_, device_, queue_of(stream));
  if (group.num_ranks() > 1) transfer->run(group, exchange);
  return transfer;
}

std::shared_ptr<const DeviceTables> DeviceMemory::make_tables(const RowTable& table, void* stream) {
  const DeviceScope scope(device_);
  constexpr std::size_t kAlignment = 16;
  auto tables = std::make_shared<DeviceTables>();
  tables->tasks = host_tasks(table);
  std::vector<std::byte> bytes;
  for_each_list(tables->tasks, [&](const auto& list) {
    const auto* data = reinterpret_cast<const std::byte*>(list.data());
    bytes.insert(bytes.end(), data, data + list.size_bytes());
    bytes.resize(align_up(bytes.size(), kAlignment));
  });
  std::byte* target = nullptr;
  if (table.life == TableLife::Kept) {
    const auto kept =
        std::make_shared<DeviceBuffer>(bytes_to_device_sync(bytes.data(), bytes.size()));
    target = static_cast<std::byte*>(kept->data());
    tables->memory = kept;
  } else if (!bytes.empty()) {
    const auto memory = allocate(static_cast<std::int64_t>(bytes.size()), stream);
    target = memory.get();
    tables->memory = memory;
    write_words(target, bytes, queue_of(stream));
  }
  for_each_list(tables->tasks, [&]<typename List>(List& list) {
    const std::size_t size_bytes = list.size_bytes();
    list = List(reinterpret_cast<typename List::pointer>(target), list.size());
    target += align_up(size_bytes, kAlignment);
  });
  return tables;
}

std::shared_ptr<RowMemory> make_device_memory(std::int32_t device,
                                              const DeviceAllocator& allocator) {
  const std::int32_t num_devices = device_count();
  if (device < 0 || device >= num_devices) {
    throw invalid("device", device,
                  "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
  }
  return std::make_shared<DeviceMemory>(device, allocator);
}

}  // namespace magi::comm
