// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "magi/attention_limits.hpp"

// Checks of a value by the limits of a backend. Each throws InvalidArgument naming the value.
namespace magi {

constexpr std::uint32_t types_of(std::initializer_list<DType> types) {
  std::uint32_t bits = 0;
  for (const DType type : types) bits |= 1U << static_cast<unsigned>(type);
  return bits;
}

void check_type(const AttentionLimits& limits, const char* name, DType type);
/// `where` stands before the dims that are allowed, such as "on a GPU ".
void check_head_dim(const HeadDims& dims, const std::string& name, std::int64_t dim,
                    const std::string& where = "");
/// The options of a call besides its tensors' shapes.
struct AttentionFeatures {
  bool has_sink = false;
  bool has_max_logits = false;
  bool has_dlse = false;
};
/// Checks the options of a call whose sums have the type `sums`.
void check_options(const AttentionLimits& limits, const AttentionParams& params, DType sums,
                   const AttentionFeatures& features);
/// Checks that the strides and the address of [rows, heads, dim] are as the limits ask.
void check_layout(const AttentionLimits& limits, const char* name, const TensorView& tensor);

}  // namespace magi
