// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "comm/device_rows.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/order_event.hpp"
#include "cuda/pool.hpp"
#include "cuda/stream.hpp"
#include "cuda/stream_buffer.hpp"

// Packed exchanges in device memory: rows are packed and put into place on the caller's stream,
// bytes are exchanged on a stream of the exchanger's beside it, and events order the two.
namespace magi::comm {
namespace {

cudaStream_t queue_of(void* stream) { return static_cast<cudaStream_t>(stream); }

/// Bytes between the packing and what follows it on the caller's streams.
class DeviceTransfer final : public Transfer {
 public:
  /// On the current device.
  DeviceTransfer(std::shared_ptr<Stream> transport, std::int32_t device, cudaStream_t stream)
      : transport_(std::move(transport)),
        device_(device),
        start_stream_(stream),
        last_stream_(stream) {}
  ~DeviceTransfer() override;
  void run(Communicator& group, const ByteExchange& exchange);
  void await(void* stream) override;

 private:
  std::shared_ptr<Stream> transport_;
  std::int32_t device_;
  cudaStream_t start_stream_;
  cudaStream_t last_stream_;  ///< the one that awaited the bytes
  OrderEvent event_;
  bool is_sent_ = false;
  bool is_awaited_ = false;
};

void DeviceTransfer::run(Communicator& group, const ByteExchange& exchange) {
  event_.record(start_stream_);
  event_.await(transport_->handle());
  is_sent_ = true;
  ByteExchange on_device = exchange;
  on_device.device = device_;
  group.start_bytes(on_device, transport_->handle());
  event_.record(transport_->handle());
}

void DeviceTransfer::await(void* stream) {
  const DeviceScope scope(device_);
  last_stream_ = queue_of(stream);
  if (is_sent_) event_.await(last_stream_);
  is_awaited_ = true;
  if (last_stream_ == start_stream_) return;
  event_.record(start_stream_);  // behind the rows that stay
  event_.await(last_stream_);
}

// What the start took is given back on its stream: behind the transport, which may still read and
// write there, and behind what took the rows on another stream.
DeviceTransfer::~DeviceTransfer() {
  if (is_awaited_ ? last_stream_ == start_stream_ : !is_sent_) return;
  try {
    const DeviceScope scope(device_);
    event_.record(is_awaited_ ? last_stream_ : transport_->handle());
    event_.await(start_stream_);
  } catch (const std::exception&) {
    // The device has failed: every later call says so.
    static_cast<void>(cudaGetLastError());
  }
}

class DeviceMemory final : public RowMemory {
 public:
  DeviceMemory(std::int32_t device, const DeviceAllocator& allocator)
      : device_(device), allocator_(allocator) {}

  RowTasks tasks_of(const RowTable& table, void* stream) override {
    std::shared_ptr<const DeviceTables>& tables = table.on_device[device_];
    if (tables == nullptr) tables = make_tables(table, stream);
    return tables->tasks;
  }

  std::shared_ptr<std::byte> allocate(std::int64_t size_bytes, void* stream) override {
    const DeviceScope scope(device_);
    const auto memory = std::make_shared<StreamBuffer>(
        allocator_, static_cast<std::size_t>(size_bytes), device_, queue_of(stream));
    return {memory, static_cast<std::byte*>(memory->data())};
  }

  void copy(const RowSide& from, const RowSide& to, std::span<const RowTask> tasks,
            void* stream) override {
    const DeviceScope scope(device_);
    copy_rows(from, to, tasks, queue_of(stream));
  }

  void combine(const Partials& partials, void* stream) override {
    const DeviceScope scope(device_);
    combine_rows(partials, queue_of(stream));
  }

  std::unique_ptr<Transfer> start(Communicator& group, const ByteExchange& exchange,
                                  void* stream) override {
    const DeviceScope scope(device_);
    if (transport_ == nullptr) {
      transport_ = std::make_shared<Stream>();
      if (!allocator_.allocate) lease_ = PoolLease(device_);
    }
    auto transfer = std::make_unique<DeviceTransfer>(transport_, device_, queue_of(stream));
    if (group.num_ranks() > 1) transfer->run(group, exchange);
    return transfer;
  }

 private:
  std::shared_ptr<const DeviceTables> make_tables(const RowTable& table, void* stream);

  PoolLease lease_;  ///< from the first exchange on, where memory is the pool's
  std::int32_t device_;
  const DeviceAllocator& allocator_;
  std::shared_ptr<Stream> transport_;  ///< made for the first exchange
};

/// Calls visit(list) for each list.
template <typename Visit>
void for_each_list(RowTasks& tasks, const Visit& visit) {
  for (auto* list : {&tasks.owned, &tasks.needed, &tasks.own, &tasks.own_partials}) visit(*list);
  visit(tasks.sums);
  visit(tasks.parts);
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
  tables->size_bytes = static_cast<std::int64_t>(bytes.size());
  std::byte* target = nullptr;
  if (table.life == TableLife::Kept) {
    const auto kept =
        std::make_shared<DeviceBuffer>(bytes_to_device_sync(bytes.data(), bytes.size()));
    target = static_cast<std::byte*>(kept->data());
    tables->memory = kept;
  } else {
    const auto memory = allocate(tables->size_bytes, stream);
    target = memory.get();
    tables->memory = memory;
    // The host's bytes have been read when this returns, as they are pageable.
    if (!bytes.empty()) {
      cuda_check(cudaMemcpyAsync(target, bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                                 queue_of(stream)),
                 "cudaMemcpyAsync");
    }
  }
  for_each_list(tables->tasks, [&]<typename List>(List& list) {
    const std::size_t size_bytes = list.size_bytes();
    list = List(reinterpret_cast<typename List::pointer>(target), list.size());
    target += align_up(size_bytes, kAlignment);
  });
  return tables;
}

}  // namespace

std::shared_ptr<RowMemory> make_device_memory(std::int32_t device,
                                              const DeviceAllocator& allocator) {
  const std::int32_t num_devices = device_count();
  if (device < 0 || device >= num_devices) {
    throw invalid("device", device,
                  "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
  }
  return std::make_shared<DeviceMemory>(device, allocator);
}

void max_rows_on_device(const TensorView& rows, const TensorView& values, void* stream) {
  const DeviceScope scope(values.device);
  max_rows(rows, values, queue_of(stream));
}

}  // namespace magi::comm
