// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "comm/rows/row_exchanger.hpp"

namespace magi::comm {

/// A table's lists, in one memory.
struct RowTasks {
  std::span<const RowTask> owned, needed;  ///< rows that travel
  std::span<const RowTask> own;            ///< rows that stay: from local_row to wire_row
  std::span<const RowTask> own_partials;   ///< needed rows that stay, counted among themselves
  std::span<const SumTask> sums;
  std::span<const std::int32_t> parts;
  std::int32_t num_sum_rows = 0;  ///< of `sums`
};
RowTasks host_tasks(const RowTable& table);

/// A copy of a table's lists in device memory.
struct DeviceTables {
  RowTasks tasks;
  std::shared_ptr<void> memory;
};

/// Finds where the wire's rows begin if they lie in the tensors' own memory as they would on the
/// wire, as those of tensors that share their rows; else null.
std::byte* find_wire(std::span<const TensorView> tensors, const WireOrder& order);

/// One end of a copy of rows: the tensors' own, or where `wire` is given those of the wire that
/// such tensors' rows make.
struct RowSide {
  std::span<const TensorView> tensors;
  std::byte* wire = nullptr;
};

/// Partials on the wire and the tensors whose rows they are combined with.
struct Partials {
  ExchangeKind kind = ExchangeKind::Sum;
  std::span<const TensorView> to;
  std::uint64_t wire_types = 0;
  std::byte* wire = nullptr;
  RowTasks tasks;
  /// If given, all rows of the sums go there, and `to` keeps its own. `to` may have the rows
  /// alone that something is added to, one after the other: the others are not touched then.
  std::span<const TensorView> rounded = {};
};

/// RowMemory::combine in host memory.
void combine_on_host(const Partials& partials);

/// The host's memory or a GPU's, where work is enqueued on the given stream.
class RowMemory {
 public:
  virtual ~RowMemory() = default;
  /// Orders calls, where nothing else does: one begins after the end of the one before.
  virtual void begin_call(void* /*stream*/) {}
  virtual void end_call(void* /*stream*/) noexcept {}
  virtual std::shared_ptr<std::byte> allocate(std::int64_t size_bytes, void* stream) = 0;

  virtual RowTasks tasks_of(const RowTable& table, void* stream) = 0;
  /// Local rows -> wire rows, the other way where `from` is the wire.
  virtual void copy(const RowSide& from, const RowSide& to, std::span<const RowTask> tasks,
                    void* stream) = 0;
  /// Combines partial rows in the order of the parts, in float64 for float64 tensors, else in
  /// float32; 16-bit tensors are rounded once.
  virtual void combine(const Partials& partials, void* stream) = 0;
  /// Whether combine takes these `rounded`.
  virtual bool can_round(const Partials& /*partials*/) const { return false; }
  /// values[i] = the largest of rows[r, i].
  virtual void maximise(const TensorView& rows, const TensorView& values, void* stream) = 0;
  /// Starts an exchange of bytes after the stream's work. It ends before the bytes' memory.
  virtual std::unique_ptr<PendingRows> start(Communicator& group, const ByteExchange& exchange,
                                             void* stream) = 0;
};

std::shared_ptr<RowMemory> make_host_memory();
/// Throws InvalidArgument where the build has no CUDA.
std::shared_ptr<RowMemory> make_device_memory(std::int32_t device,
                                              const DeviceAllocator& allocator);
/// Either of them.
std::shared_ptr<RowMemory> make_row_memory(std::int32_t device, const DeviceAllocator& allocator);

}  // namespace magi::comm
