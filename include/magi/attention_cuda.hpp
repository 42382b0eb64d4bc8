// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "magi/attention.hpp"

// Attention on GPUs of compute capability 9.0 (H100, H200). Inputs are bfloat16 or float16, head
// dims multiples of 8 up to 128. The last dimension of q, k, v and out is contiguous, their other
// strides are multiples of 16 bytes; other tensors are refused. Keys and values that no slice
// shows to a query must be finite where they share a 128-key tile with visible ones.
namespace magi {

/// Choices of a launch that do not change its result beyond rounding.
struct ForwardTuning {
  std::int32_t sm_margin = 0;     ///< multiprocessors left to others
  std::int32_t packed_heads = 0;  ///< query heads of one kv head per tile; 0: by modelled cost
};

/// The work list of one mask and shape, kept on the device: made once, used by any number of calls
/// with the same shapes and slices, one at a time. Holds a ticket counter, so two calls on
/// different streams must not overlap.
class ForwardWork {
 public:
  /// For the shapes, types and slices of `args` (its data may be null) on the device of args.q.
  /// Blocks. Throws InvalidArgument naming what is not allowed.
  explicit ForwardWork(const ForwardArgs& args, const ForwardTuning& tuning = {});
  ~ForwardWork();
  ForwardWork(ForwardWork&&) noexcept;
  ForwardWork& operator=(ForwardWork&&) noexcept;

  /// Query heads per tile, as chosen.
  std::int32_t packed_heads() const;
  std::int64_t size_bytes() const;  ///< on the device

  struct State;
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Enqueues out, lse and max_logits of `args` on `stream` (a cudaStream_t; null: the default
/// stream). The slices are those of `work`; args.slices is not read. Bitwise equal results from
/// call to call. Throws InvalidArgument naming the tensor, CudaError when the launch fails.
void attention_forward_cuda(const ForwardArgs& args, const ForwardWork& work, void* stream);

}  // namespace magi
