// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_shard.hpp"

#include <cstring>
#include <string>

#include "base/check.hpp"
#include "base/half.hpp"
#include "comm/device_rows.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "runtime/device_elements.hpp"
#include "runtime/device_memory.hpp"
#include "runtime/elements.hpp"

namespace magi {
namespace {

void check_gapless(const char* name, const TensorView& tensor) {
  std::int64_t stride = 1;
  for (auto axis = static_cast<std::size_t>(tensor.rank); axis-- > 0;) {
    if (tensor.shape[axis] > 1 && tensor.stride[axis] != stride) {
      throw invalid(std::string(name) + ".stride[" + std::to_string(axis) + "]",
                    tensor.stride[axis],
                    std::to_string(stride) + " (on a GPU shards are row-major without gaps)");
    }
    stride *= tensor.shape[axis];
  }
}

/// [rows, elements]
TensorView flat(const TensorView& tensor) {
  std::int64_t width = 1;
  for (std::int32_t axis = 1; axis < tensor.rank; ++axis) {
    width *= tensor.shape[static_cast<std::size_t>(axis)];
  }
  TensorView view = contiguous_view(tensor.data, tensor.dtype, {tensor.shape[0], width});
  view.device = tensor.device;
  return view;
}

/// Tables and buffers of one call, in one piece of the pool.
class ShardMemory {
 public:
  ShardMemory(std::int32_t device, cudaStream_t stream) : device_(device), stream_(stream) {}

  std::size_t add(std::int64_t size_bytes) { return layout_.add(size_bytes); }
  template <typename Value>
  std::size_t add(const std::vector<Value>& table) {
    return layout_.add(static_cast<std::int64_t>(table.size() * sizeof(Value)));
  }
  void allocate() {
    // A graph would read the host's tables when it runs: they are gone by then.
    if (graph_of_capture(stream_) != nullptr) {
      throw invalid("stream", "being captured",
                    "one that is not, for dispatch, undispatch and roll");
    }
    memory_ = std::make_unique<CallMemory>(pool_, layout_.total_bytes(), device_, stream_);
  }
  std::byte* at(std::size_t begin) const { return memory_->at(begin); }
  /// The device's copy of a table; the host's is read before this returns.
  template <typename Value>
  const Value* upload(const std::vector<Value>& table, std::size_t begin) const {
    if (!table.empty()) {
      cuda_check(cudaMemcpyAsync(at(begin), table.data(), table.size() * sizeof(Value),
                                 cudaMemcpyHostToDevice, stream_),
                 "cudaMemcpyAsync");
    }
    return reinterpret_cast<const Value*>(at(begin));
  }

 private:
  std::int32_t device_;
  cudaStream_t stream_;
  CallLayout layout_;
  DeviceAllocator pool_;
  std::unique_ptr<CallMemory> memory_;
};

comm::TaskList task_list(const std::vector<comm::RowTask>& tasks, const comm::RowTask* device) {
  return {device, static_cast<std::int32_t>(tasks.size())};
}

/// A move as tasks from local rows to "wire" rows, which are the target's.
std::vector<comm::RowTask> move_tasks(std::span<const LocalMove> moves) {
  std::vector<comm::RowTask> tasks;
  for (const LocalMove& move : moves) {
    for (std::int32_t row = 0; row < move.num_rows; row += comm::kRowsPerTask) {
      tasks.push_back({.local_row = move.source_row + row,
                       .wire_row = move.target_row + row,
                       .num_rows = std::min(comm::kRowsPerTask, move.num_rows - row)});
    }
  }
  return tasks;
}

/// The same as sums of one part each.
comm::SumTable move_sums(std::span<const LocalMove> moves) {
  comm::SumTable table;
  for (const comm::RowTask& task : move_tasks(moves)) {
    table.tasks.push_back({.row = task.wire_row,
                           .num_rows = task.num_rows,
                           .first_part = static_cast<std::int32_t>(table.parts.size()),
                           .num_parts = 1});
    table.parts.push_back(task.local_row);
  }
  return table;
}

/// Rows of an exchange in device memory: packed, sent, received.
class ShardExchange {
 public:
  const comm::WireOrder sent, received;

  ShardExchange(const RowExchange& rows, Communicator& communicator, ExchangePurpose purpose)
      : sent(comm::wire_order(purpose == ExchangeKind::Cast ? rows.owned : rows.needed,
                              communicator.num_ranks())),
        received(comm::wire_order(purpose == ExchangeKind::Cast ? rows.needed : rows.owned,
                                  communicator.num_ranks())),
        communicator_(communicator),
        purpose_(purpose) {}

  void add_to(ShardMemory& memory, std::int64_t row_bytes) {
    row_bytes_ = row_bytes;
    sent_tasks_at_ = memory.add(sent.tasks);
    received_tasks_at_ = memory.add(received.tasks);
    send_at_ = memory.add(sent.num_rows * row_bytes);
    receive_at_ = memory.add(received.num_rows * row_bytes);
  }
  void run(const TensorView& source, const ShardMemory& memory, cudaStream_t stream) {
    const comm::RowTask* tasks = memory.upload(sent.tasks, sent_tasks_at_);
    comm::rows_to_wire({&source, 1}, memory.at(send_at_), task_list(sent.tasks, tasks), stream);
    const auto send_bytes = sent.peer_bytes(row_bytes_);
    const auto receive_bytes = received.peer_bytes(row_bytes_);
    communicator_.all_to_all_v({.send = memory.at(send_at_),
                                .receive = memory.at(receive_at_),
                                .send_bytes = send_bytes,
                                .receive_bytes = receive_bytes,
                                .device = source.device,
                                .kind = purpose_,
                                .tag = {}},
                               stream);
  }
  const std::byte* wire(const ShardMemory& memory) const { return memory.at(receive_at_); }
  void store(const TensorView& target, const ShardMemory& memory, cudaStream_t stream) const {
    const comm::RowTask* tasks = memory.upload(received.tasks, received_tasks_at_);
    comm::rows_from_wire({&target, 1}, wire(memory), task_list(received.tasks, tasks), stream);
  }

 private:
  Communicator& communicator_;
  ExchangePurpose purpose_;
  std::int64_t row_bytes_ = 0;
  std::size_t sent_tasks_at_ = 0, received_tasks_at_ = 0, send_at_ = 0, receive_at_ = 0;
};

/// The bits of a value in an element type.
std::uint64_t bits_of(double value, DType dtype) {
  std::uint64_t bits = 0;
  const auto keep = [&bits](auto element) { std::memcpy(&bits, &element, sizeof(element)); };
  switch (dtype) {
    case DType::Float64:
      keep(value);
      break;
    case DType::Float32:
      keep(static_cast<float>(value));
      break;
    case DType::Float16:
      keep(float_to_float16(static_cast<float>(value)));
      break;
    case DType::BFloat16:
      keep(float_to_bfloat16(static_cast<float>(value)));
      break;
    case DType::Int32:
      keep(static_cast<std::int32_t>(value));
      break;
    case DType::Int64:
      keep(static_cast<std::int64_t>(value));
      break;
  }
  return bits;
}

}  // namespace

void check_device_shards(const char* first_name, const TensorView& first, const char* second_name,
                         const TensorView& second, const Communicator* communicator) {
  const std::int32_t num_devices = device_count();
  if (first.device >= num_devices) {
    throw invalid(std::string(first_name) + ".device", first.device,
                  "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
  }
  check_gapless(first_name, first);
  check_gapless(second_name, second);
  if (communicator == nullptr || communicator->num_ranks() == 1) return;
  if (communicator->has_device_exchange()) return;
  throw invalid("communicator", std::string("a ") + communicator->backend() + " group",
                "for tensors on a GPU a group that moves device memory");
}

void move_device_rows(const DeviceShardMove& move, void* stream) {
  const DeviceScope scope(move.source.device);
  const auto queue = static_cast<cudaStream_t>(stream);
  const TensorView source = flat(move.source);
  const TensorView target = flat(move.target);
  const std::vector<comm::RowTask> tasks = move_tasks(move.moves);
  ShardMemory memory(source.device, queue);
  const std::size_t tasks_at = memory.add(tasks);
  std::optional<ShardExchange> exchange;
  if (move.communicator != nullptr && move.communicator->num_ranks() > 1) {
    exchange.emplace(*move.exchange, *move.communicator, ExchangeKind::Cast);
    exchange->add_to(memory, comm::wire_row_bytes({&source, 1}));
  }
  memory.allocate();
  comm::rows_to_wire({&source, 1}, target.data, task_list(tasks, memory.upload(tasks, tasks_at)),
                     queue);
  if (!exchange) return;
  exchange->run(source, memory, queue);
  exchange->store(target, memory, queue);
}

void sum_device_rows(const DeviceShardSum& sum, void* stream) {
  const DeviceScope scope(sum.global.device);
  const auto queue = static_cast<cudaStream_t>(stream);
  const TensorView global = flat(sum.global);
  const TensorView local = flat(sum.local);
  const DType wide = accumulator_type(local.dtype);
  const comm::SumTable own = move_sums(sum.own);
  ShardExchange exchange(sum.exchange, sum.communicator, ExchangeKind::Sum);
  const comm::SumTable others = comm::sum_table(exchange.received);
  ShardMemory memory(global.device, queue);
  const std::size_t own_at = memory.add(own.tasks);
  const std::size_t own_parts_at = memory.add(own.parts);
  const std::size_t others_at = memory.add(others.tasks);
  const std::size_t other_parts_at = memory.add(others.parts);
  TensorView total = local;
  total.dtype = wide;
  const std::int64_t total_bytes =
      local.num_elements() * static_cast<std::int64_t>(dtype_bytes(wide));
  const std::size_t total_at = memory.add(wide == local.dtype ? 0 : total_bytes);
  exchange.add_to(memory, comm::wire_row_bytes({&global, 1}));
  memory.allocate();
  if (wide != local.dtype) total.data = memory.at(total_at);
  if (total_bytes > 0) {
    cuda_check(cudaMemsetAsync(total.data, 0, static_cast<std::size_t>(total_bytes), queue),
               "cudaMemsetAsync");
  }
  comm::add_rows_from_wire(
      {&total, 1}, global.data, global.dtype,
      {memory.upload(own.tasks, own_at), memory.upload(own.parts, own_parts_at),
       static_cast<std::int32_t>(own.tasks.size())},
      queue);
  exchange.run(global, memory, queue);
  comm::add_rows_from_wire(
      {&total, 1}, exchange.wire(memory), global.dtype,
      {memory.upload(others.tasks, others_at), memory.upload(others.parts, other_parts_at),
       static_cast<std::int32_t>(others.tasks.size())},
      queue);
  if (wide != local.dtype) round_device_floats(total, local, queue);
}

void fill_device_elements(const TensorView& target, double value, void* stream) {
  const DeviceScope scope(target.device);
  fill_device_bits(target, bits_of(value, target.dtype), static_cast<cudaStream_t>(stream));
}

}  // namespace magi
