// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/check/check_attention.hpp"
#include "kernels/schedule/host/in_flight_keys.hpp"
#include "magi/attention_cuda.hpp"

// Checks of calls of prepared objects, beyond those of check_attention(). Each throws
// InvalidArgument naming the tensor, the value seen and the values allowed.
namespace magi {

/// The values that a prepared object depends on besides the slices.
struct AttentionProblem {
  using Shape = std::array<std::int64_t, 3>;
  Shape q{}, k{}, v{};
  DType type = DType::BFloat16;
  DType dout_type = DType::BFloat16;  ///< backward only
  std::int32_t device = kCpuDevice;

  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};
AttentionProblem problem_of(const ForwardArgs& args);
AttentionProblem problem_of(const BackwardArgs& args);

/// All of a call, for an object that was prepared for `made_for`.
void check_call(const AttentionLimits& limits, const ForwardArgs& args,
                const AttentionProblem& made_for);
void check_call(const AttentionLimits& limits, const BackwardArgs& args,
                const AttentionProblem& made_for);
/// Throws InvalidArgument if a flag pointer is missing.
void check_arrivals(const KeyArrivals& arrivals);
/// The own keys of a call with `k` and `v`, prepared for `own_rows` of them.
void check_own_keys(const AttentionLimits& limits, const KeyArrivals& arrivals,
                    std::int32_t own_rows, const TensorView& k, const TensorView& v);
/// Places of a call's gradients for so many parts.
void check_part_gradients(std::span<const PartGradients> gradients, const BackwardArgs& args,
                          std::size_t num_parts);
/// Memory of `size_bytes` or more, aligned to kArenaAlignment.
void check_workspace(const DeviceWorkspace& workspace, std::int64_t size_bytes);

}  // namespace magi
