// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/wire_order.hpp"
#include "cuda/memory.hpp"
#include "magi/tensor.hpp"

// Rows between strided device tensors and a wire buffer, whose row is the concatenation of the
// tensors' rows. One launch per call, nothing waits.
namespace magi::comm {

/// Tables in device memory.
struct TaskList {
  const RowTask* tasks = nullptr;
  std::int32_t count = 0;
};
struct SumList {
  const SumTask* tasks = nullptr;
  const std::int32_t* parts = nullptr;
  std::int32_t count = 0;
};

/// Owners of such tables on the device that was current when they were made.
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

inline constexpr std::size_t kMaxRowTensors = 2;

/// Bytes of a wire row. Tensors are [rows, heads, dim] with contiguous dim, or [rows, elements].
std::int64_t wire_row_bytes(std::span<const TensorView> tensors);

/// Local rows of the tensors -> wire, and back. At most kMaxRowTensors tensors, whose strides and
/// data suit one unit of 1 to 16 bytes, the larger the faster.
void rows_to_wire(std::span<const TensorView> tensors, void* wire, TaskList tasks,
                  cudaStream_t stream);
void rows_from_wire(std::span<const TensorView> tensors, const void* wire, TaskList tasks,
                    cudaStream_t stream);

/// Adds wire rows of `wire_type` to the tensors' rows (float32 or float64), in the order of the
/// parts.
void add_rows_from_wire(std::span<const TensorView> tensors, const void* wire, DType wire_type,
                        SumList sums, cudaStream_t stream);

}  // namespace magi::comm
