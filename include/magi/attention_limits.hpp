// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "magi/attention.hpp"

namespace magi {

/// Head dims that a backend takes: multiples of `multiple` from `min` to `max`.
struct HeadDims {
  std::int32_t min = 1;
  std::int32_t max = std::numeric_limits<std::int32_t>::max();
  std::int32_t multiple = 1;
};

/// The limits of an attention backend. Anything else is refused by name.
struct AttentionLimits {
  HeadDims dim_qk;
  HeadDims dim_v;
  std::uint32_t types = 0;         ///< of q, k and v: bit 1 << DType
  std::int32_t stride_bytes = 1;   ///< strides of rows and heads, and addresses, are multiples
  bool has_float_outputs = false;  ///< writes out and gradients as float32 beside 16-bit inputs
  bool has_sink = false;
  bool has_softcap = false;
  bool has_max_logits = false;
  bool has_dlse = false;       ///< takes the gradient through lse
  bool has_any_scale = false;  ///< softmax_scale may be negative
  /// Heads of sinks, of their gradients and of max_logits may have any stride; else it is 1.
  bool has_spread_sinks = false;

  bool takes(DType type) const { return (types >> static_cast<unsigned>(type) & 1U) != 0; }
};

/// Limits of the backend that serves `device` (a CUDA ordinal or kCpuDevice) where none is named.
/// Throws InvalidArgument naming a device that has none.
AttentionLimits attention_limits(std::int32_t device);

}  // namespace magi
