// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>

namespace magi::test {

/// The head dims that a kernel instance is made for.
struct InstanceDims {
  std::int32_t qk;
  std::int32_t v;

  friend std::ostream& operator<<(std::ostream& stream, const InstanceDims& dims) {
    return stream << dims.qk << ':' << dims.v;
  }
};

/// Those of all forward instances.
inline constexpr InstanceDims kForwardDims[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
inline auto forward_dims() { return ::testing::ValuesIn(kForwardDims); }

}  // namespace magi::test
