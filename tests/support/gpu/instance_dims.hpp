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
inline auto forward_dims() {
  return ::testing::Values(InstanceDims{64, 64}, InstanceDims{128, 128}, InstanceDims{192, 128},
                           InstanceDims{256, 256});
}

}  // namespace magi::test
