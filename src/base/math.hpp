// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace magi {

template <typename Integer>
constexpr Integer ceil_div(Integer a, Integer b) {
  return (a + b - 1) / b;
}

template <typename Integer>
constexpr Integer align_up(Integer a, Integer b) {
  return ceil_div(a, b) * b;
}

}  // namespace magi
