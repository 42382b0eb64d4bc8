// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cuda/memory.hpp"
#include "magi/tensor.hpp"
#include "mask/random_mask.hpp"

// Tensors of benches, on the first device.
namespace magi::bench {

/// Random bfloat16 values of magnitude 0.5 to 1: a million drawn once, and these repeated.
inline DeviceBuffer random_values(std::int64_t count, std::uint64_t seed) {
  constexpr std::size_t kDrawn = 1 << 20;
  RandomStream random(seed);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        i < kDrawn ? static_cast<std::uint16_t>((random() & 0x807f) | 0x3f00) : values[i - kDrawn];
  }
  return to_device_sync<std::uint16_t>(values);
}

/// The row-major tensor that a buffer holds.
inline TensorView device_view(const DeviceBuffer& buffer, DType type,
                              std::initializer_list<std::int64_t> shape) {
  TensorView view = contiguous_view(buffer.data(), type, shape);
  view.device = 0;
  return view;
}

}  // namespace magi::bench
