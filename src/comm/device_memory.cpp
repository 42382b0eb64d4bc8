// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "comm/device_rows.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/order_event.hpp"
#include "cuda/stream.hpp"
#include "cuda/stream_buffer.hpp"

// Packed exchanges in device memory: rows are packed and put into place on the caller's stream,
// bytes are exchanged on a stream of the exchanger's beside it, and events order the two.
namespace magi::comm {
namespace {

cudaStream_t queue_of(void* stream) { return static_cast<cudaStream_t>(stream); }

/// The lists one after the other, each from an aligned byte on.
class PackedTasks {
 public:
  template <typename Value>
  std::size_t add(std::span<const Value> list) {
    const std::size_t begin = bytes.size();
    bytes.resize(align_up(begin + list.size_bytes(), kAlignment));
    if (!list.empty()) std::memcpy(bytes.data() + begin, list.data(), list.size_bytes());
    return begin;
  }
  std::vector<std::byte> bytes;

 private:
  static constexpr std::size_t kAlignment = 16;
};

class DeviceMemory;

/// Bytes between the packing and what follows it on the caller's streams.
class DeviceTransfer final : public Transfer {
 public:
  DeviceTransfer(std::shared_ptr<DeviceMemory> memory, cudaStream_t stream);
  ~DeviceTransfer() override;
  void run(Communicator& group, const ByteExchange& exchange);
  void await(void* stream) override;

 private:
  std::shared_ptr<DeviceMemory> memory_;
  cudaStream_t start_stream_;
  cudaStream_t last_stream_;  ///< the one that awaited the bytes
  std::unique_ptr<OrderEvent> event_;
  bool is_sent_ = false;
  bool is_awaited_ = false;
};

class DeviceMemory final : public RowMemory, public std::enable_shared_from_this<DeviceMemory> {
 public:
  DeviceMemory(std::int32_t device, const DeviceAllocator& allocator)
      : device_(device), allocator_(allocator) {}

  RowTasks tasks_of(const RowTable& table, void* stream) override {
    std::shared_ptr<const DeviceTables>& tables = table.on_device[device_];
    if (tables == nullptr) tables = make_tables(table, queue_of(stream));
    return tables->tasks;
  }

  std::shared_ptr<std::byte> allocate(std::int64_t size_bytes, void* stream) override {
    const auto memory = std::make_shared<StreamBuffer>(
        allocator_, static_cast<std::size_t>(size_bytes), device_, queue_of(stream));
    return {memory, static_cast<std::byte*>(memory->data())};
  }

  void pack(std::span<const TensorView> from, std::byte* wire, std::span<const RowTask> tasks,
            void* stream) override {
    const DeviceScope scope(device_);
    pack_rows(from, wire, tasks, queue_of(stream));
  }
  void unpack(const std::byte* wire, std::span<const TensorView> to, std::span<const RowTask> tasks,
              void* stream) override {
    const DeviceScope scope(device_);
    unpack_rows(wire, to, tasks, queue_of(stream));
  }
  void copy(std::span<const TensorView> from, std::span<const TensorView> to,
            std::span<const RowTask> tasks, void* stream) override {
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
    auto transfer = std::make_unique<DeviceTransfer>(shared_from_this(), queue_of(stream));
    if (group.num_ranks() > 1) transfer->run(group, exchange);
    return transfer;
  }

 private:
  friend class DeviceTransfer;

  std::shared_ptr<const DeviceTables> make_tables(const RowTable& table, cudaStream_t stream);

  std::int32_t device_;
  const DeviceAllocator& allocator_;
  std::optional<Stream> transport_;                  ///< made for the first exchange
  std::vector<std::unique_ptr<OrderEvent>> events_;  ///< free ones
};

std::shared_ptr<const DeviceTables> DeviceMemory::make_tables(const RowTable& table,
                                                              cudaStream_t stream) {
  const DeviceScope scope(device_);
  PackedTasks packed;
  const std::size_t begins[] = {
      packed.add<RowTask>(table.owned.tasks), packed.add<RowTask>(table.needed.tasks),
      packed.add<RowTask>(table.own),         packed.add<RowTask>(table.needed.own_tasks),
      packed.add<SumTask>(table.sums.tasks),  packed.add<std::int32_t>(table.sums.parts)};
  auto tables = std::make_shared<DeviceTables>();
  tables->size_bytes = static_cast<std::int64_t>(packed.bytes.size());
  std::byte* data = nullptr;
  if (table.life == TableLife::Kept) {
    const auto memory = std::make_shared<DeviceBuffer>(
        bytes_to_device_sync(packed.bytes.data(), packed.bytes.size()));
    data = static_cast<std::byte*>(memory->data());
    tables->memory = memory;
  } else {
    const auto memory =
        std::make_shared<StreamBuffer>(allocator_, packed.bytes.size(), device_, stream);
    data = static_cast<std::byte*>(memory->data());
    tables->memory = memory;
    if (!packed.bytes.empty()) {
      // The host's bytes have been read when this returns, as they are pageable.
      cuda_check(cudaMemcpyAsync(data, packed.bytes.data(), packed.bytes.size(),
                                 cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync");
    }
  }
  const auto rows_at = [&](std::size_t list, const std::vector<RowTask>& host) {
    return std::span(reinterpret_cast<const RowTask*>(data + begins[list]), host.size());
  };
  tables->tasks = {
      .owned = rows_at(0, table.owned.tasks),
      .needed = rows_at(1, table.needed.tasks),
      .own = rows_at(2, table.own),
      .own_partials = rows_at(3, table.needed.own_tasks),
      .sums = {reinterpret_cast<const SumTask*>(data + begins[4]), table.sums.tasks.size()},
      .parts = {reinterpret_cast<const std::int32_t*>(data + begins[5]), table.sums.parts.size()}};
  return tables;
}

DeviceTransfer::DeviceTransfer(std::shared_ptr<DeviceMemory> memory, cudaStream_t stream)
    : memory_(std::move(memory)), start_stream_(stream), last_stream_(stream) {
  if (memory_->events_.empty()) {
    event_ = std::make_unique<OrderEvent>();
  } else {
    event_ = std::move(memory_->events_.back());
    memory_->events_.pop_back();
  }
}

void DeviceTransfer::run(Communicator& group, const ByteExchange& exchange) {
  if (!memory_->transport_) memory_->transport_.emplace();
  const cudaStream_t transport = memory_->transport_->handle();
  event_->record(start_stream_);
  event_->await(transport);
  is_sent_ = true;
  ByteExchange on_device = exchange;
  on_device.device = memory_->device_;
  group.start_bytes(on_device, transport);
  event_->record(transport);
}

void DeviceTransfer::await(void* stream) {
  const DeviceScope scope(memory_->device_);
  last_stream_ = queue_of(stream);
  if (is_sent_) event_->await(last_stream_);
  is_awaited_ = true;
  if (last_stream_ == start_stream_) return;
  event_->record(start_stream_);  // behind the rows that stay
  event_->await(last_stream_);
}

// What the start took is given back on its stream: behind the transport, which may still read and
// write there, and behind what took the rows on another stream.
DeviceTransfer::~DeviceTransfer() {
  try {
    const DeviceScope scope(memory_->device_);
    const bool is_other = last_stream_ != start_stream_;
    if (is_sent_ && (!is_awaited_ || is_other)) {
      event_->record(is_awaited_ ? last_stream_ : memory_->transport_->handle());
      event_->await(start_stream_);
    }
    memory_->events_.push_back(std::move(event_));
  } catch (const std::exception&) {
    // The device has failed: every later call says so.
    static_cast<void>(cudaGetLastError());
  }
}

std::shared_ptr<DeviceMemory> make_checked(std::int32_t device, const DeviceAllocator& allocator) {
  const std::int32_t num_devices = device_count();
  if (device < 0 || device >= num_devices) {
    throw invalid("device", device,
                  "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
  }
  const DeviceScope scope(device);
  return std::make_shared<DeviceMemory>(device, allocator);
}

}  // namespace

std::shared_ptr<RowMemory> make_device_memory(std::int32_t device,
                                              const DeviceAllocator& allocator) {
  return make_checked(device, allocator);
}

void max_rows_on_device(const TensorView& rows, const TensorView& values, void* stream) {
  const DeviceScope scope(values.device);
  max_rows(rows, values, queue_of(stream));
}

}  // namespace magi::comm
