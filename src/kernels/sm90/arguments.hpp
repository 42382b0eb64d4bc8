// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/tensor.hpp"

// Arguments that the attention kernels have in common, as they travel to the device.
namespace magi::sm90 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// A tensor [rows, heads] or [rows, heads, dim] whose dim is contiguous; strides in elements. Rows
/// of dim are aligned to 16 bytes.
struct StridedRows {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  DType type = DType::Float32;

  constexpr bool is_float() const { return type == DType::Float32; }
};

/// Sink logits: value(row, sink, head) = data[row * row_stride + sink * sink_stride + head].
struct SinkRows {
  const float* data = nullptr;
  std::int64_t row_stride = 0;  ///< 0 where all rows share the sinks
  std::int64_t sink_stride = 0;
  std::int32_t count = 0;
};

/// The place where a launch finds out which keys have come; see KeyArrivals.
struct ArrivalFlags {
  const std::uint64_t* flags = nullptr;  ///< [arrival chunks, sources]; null: all keys are there
  const std::uint64_t* expected = nullptr;
  std::int64_t spin_budget_ns = 0;
  std::int32_t num_sources = 0;
};

/// The score arithmetic: p = exp2(exponent_scale * (f(s) - f(max))), f(s) = s, or tanh(cap_scale *
/// s) with a softcap.
struct ScoreScale {
  float exponent_scale = 0.0f;  ///< softmax_scale * log2(e), or softcap * log2(e)
  float cap_scale = 0.0f;       ///< 0: no softcap; else softmax_scale / softcap
  float softmax_scale = 0.0f;
  float slack = 0.0f;  ///< raw score by which a score may pass the base of the exponentials
};

}  // namespace magi::sm90
