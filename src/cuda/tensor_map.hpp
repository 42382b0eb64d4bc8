// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>

#include "magi/tensor.hpp"

namespace magi {

/// Elements of 16 bits in one 128-byte row of a swizzled shared-memory panel.
inline constexpr std::int32_t kPanelDim = 64;

/// Box of a bulk copy out of a [tokens, heads, dim] tensor of 16-bit elements: kPanelDim elements
/// of dim, `heads` heads, `tokens` tokens; a token's heads lie in consecutive 128-byte rows.
struct TensorBox {
  std::int32_t heads = 1;
  std::int32_t tokens = 1;
};

/// Throws InvalidArgument, naming tensor and stride, unless dim is contiguous, the other strides
/// are non-negative multiples of 16 bytes and the data is 16-byte aligned.
void check_copyable(std::string_view name, const TensorView& tensor);

/// The copy descriptor of a checked, non-empty tensor, 128-byte swizzle. Reads outside the tensor
/// give zeros.
CUtensorMap make_tensor_map(const TensorView& tensor, TensorBox box);

/// Likewise of the windows of `rows` tokens that begin at each token, all of one head: a box of as
/// many rows that hangs over its window has zeros there, whatever the tensor has. What lies inside
/// of the window must lie inside of the tensor.
CUtensorMap make_window_map(const TensorView& tensor, std::int32_t rows);

}  // namespace magi
