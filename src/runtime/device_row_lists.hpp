// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "comm/device_rows.hpp"
#include "comm/row_layout.hpp"
#include "cuda/memory.hpp"

// Task lists in device memory, and the rows they name.
namespace magi::comm {

struct TaskList {
  const RowTask* tasks = nullptr;
  std::int32_t count = 0;
};
struct SumList {
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;
  std::int32_t count = 0;
};
struct DeviceTasks {
  DeviceTasks() = default;
  explicit DeviceTasks(std::span<const RowTask> given)
      : tasks(to_device_sync(given)), count(static_cast<std::int32_t>(given.size())) {}
  operator TaskList() const { return {static_cast<const RowTask*>(tasks.data()), count}; }
  DeviceBuffer tasks;
  std::int32_t count = 0;
};
struct DeviceSums {
  DeviceSums() = default;
  explicit DeviceSums(const SumTable& table)
      : tasks(to_device_sync<SumTask>(table.tasks)),
        parts(to_device_sync<std::int32_t>(table.parts)),
        count(static_cast<std::int32_t>(table.tasks.size())) {}
  operator SumList() const {
    return {static_cast<const SumTask*>(tasks.data()),
            static_cast<const std::int32_t*>(parts.data()), count};
  }
  DeviceBuffer tasks, parts;
  std::int32_t count = 0;
};

inline std::span<const RowTask> span_of(TaskList list) {
  return {list.tasks, static_cast<std::size_t>(list.count)};
}
inline void rows_to_wire(std::span<const TensorView> tensors, void* wire, TaskList tasks,
                         cudaStream_t stream) {
  copy_rows({tensors}, {tensors, static_cast<std::byte*>(wire)}, span_of(tasks), stream);
}
inline void rows_from_wire(std::span<const TensorView> tensors, const void* wire, TaskList tasks,
                           cudaStream_t stream) {
  copy_rows({tensors, static_cast<std::byte*>(const_cast<void*>(wire))}, {tensors}, span_of(tasks),
            stream);
}
inline void add_rows_from_wire(std::span<const TensorView> tensors, const void* wire, DType type,
                               SumList sums, cudaStream_t stream) {
  const auto code = static_cast<std::uint64_t>(type) + 1;
  combine_rows({.to = tensors,
                .wire_types = code | code << 4,
                .wire = static_cast<const std::byte*>(wire),
                .tasks = {.sums = {sums.tasks, static_cast<std::size_t>(sums.count)},
                          .parts = {sums.parts, 0}}},
               stream);
}

}  // namespace magi::comm
