// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "comm/row_exchanger.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/runtime.hpp"

namespace magi {

/// The memory that the tensors of a step lie in: the host's, or that of one GPU. It lends the
/// tensors that a call needs for itself, does element-wise work on them, and knows who exchanges
/// their rows and who attends. On a GPU everything is enqueued behind the work of the call's
/// stream, and nothing waits.
class StepMemory {
 public:
  virtual ~StepMemory() = default;

  /// Throws InvalidArgument where a call on `stream` cannot run; equal on all ranks.
  virtual void check_call(void* stream) const = 0;
  /// Begins a call, behind the one before; end gives back what it was lent, also after an error.
  virtual void begin(void* stream) = 0;
  virtual void end() noexcept = 0;
  /// A row-major tensor that lives until `end`; its contents are undefined.
  virtual TensorView lend(DType dtype, std::initializer_list<std::int64_t> shape) = 0;

  /// target = source, rounded where the target's type is narrower. Equal shapes [rows, heads, dim].
  virtual void convert(const TensorView& source, const TensorView& target) = 0;
  /// Every element of `target` = value.
  virtual void fill(const TensorView& target, double value) = 0;

  virtual std::int32_t device() const = 0;
  virtual comm::RowExchanger& rows() = 0;
  virtual const AttentionBackend& attention() const = 0;
  /// Bytes held between calls, and what the largest call was lent.
  virtual std::size_t size_bytes() const = 0;
};

/// Who a memory's steps are run for; all outlive it.
struct StepMemorySetup {
  const AttentionOptions& options;
  Communicator& communicator;
  std::int32_t device = kCpuDevice;
};

std::unique_ptr<StepMemory> make_host_memory(const StepMemorySetup& setup);
/// Throws InvalidArgument where there is no such GPU, the group moves no device memory, or
/// options.exchange_sms does not suit the GPU.
std::unique_ptr<StepMemory> make_device_memory(const StepMemorySetup& setup);

}  // namespace magi
