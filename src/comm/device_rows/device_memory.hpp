// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "comm/rows/row_memory.hpp"
#include "cuda/order_event.hpp"
#include "cuda/pool.hpp"
#include "cuda/stream.hpp"

namespace magi::comm {

/// A GPU's memory. Rows are packed and put into place on the caller's stream, bytes are exchanged
/// on a stream beside it, and events order the two. Nothing waits.
class DeviceMemory final : public RowMemory {
 public:
  DeviceMemory(std::int32_t device, const DeviceAllocator& allocator)
      : device_(device), allocator_(allocator) {}

  void begin_call(void* stream) override;
  void end_call(void* stream) noexcept override;
  std::shared_ptr<std::byte> allocate(std::int64_t size_bytes, void* stream) override;
  RowTasks tasks_of(const RowTable& table, void* stream) override;
  /// Strides and data of the tensors suit one unit of 2 to 16 bytes, the larger the faster. Throws
  /// InvalidArgument for a tensor with more than one strided axis beyond its rows.
  void copy(const RowSide& from, const RowSide& to, std::span<const RowTask> tasks,
            void* stream) override;
  /// The lse of a merge is float32 (float64 beside a float64 out), also on the wire.
  void combine(const Partials& partials, void* stream) override;
  bool can_round(const Partials& partials) const override;
  /// float32 without gaps.
  void maximise(const TensorView& rows, const TensorView& values, void* stream) override;
  std::unique_ptr<PendingRows> start(Communicator& group, const ByteExchange& exchange,
                                     void* stream) override;

 private:
  void keep_pool();
  std::shared_ptr<const DeviceTables> make_tables(const RowTable& table, void* stream);

  std::optional<PoolLease> lease_;  ///< while calls or exchanges take memory of the pool
  std::int32_t device_;
  const DeviceAllocator& allocator_;
  std::optional<CallOrder> calls_;
  std::shared_ptr<Stream> transport_;  ///< made for the first exchange
};

/// Writes whole words after the stream's work. They travel as parameters of kernels: a copy from
/// memory that is not pinned would make the host wait for the stream.
void write_words(std::byte* target, std::span<const std::byte> words, cudaStream_t stream);

}  // namespace magi::comm
