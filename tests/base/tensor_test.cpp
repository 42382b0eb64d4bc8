// SPDX-License-Identifier: Apache-2.0
#include "magi/tensor.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "magi/error.hpp"

namespace magi {
namespace {

TEST(Tensor, SliceMovesTheDataByStrides) {
  std::vector<float> data(2 * 3 * 4);
  const TensorView view = contiguous_view(data.data(), DType::Float32, {2, 3, 4});
  EXPECT_EQ(view.num_elements(), 24);
  const TensorView heads = view.slice(1, 1, 3);
  EXPECT_EQ(heads.data, data.data() + 4);
  EXPECT_EQ(heads.shape[1], 2);
  EXPECT_EQ(heads.stride[0], 12);
}

TEST(Tensor, BadSlicesNameTheRange) {
  std::vector<float> data(6);
  const TensorView view = contiguous_view(data.data(), DType::Float32, {2, 3});
  EXPECT_THROW(view.slice(2, 0, 1), InvalidArgument);
  try {
    view.slice(1, 2, 4);
    FAIL() << "a slice past the end was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "slice is 2:4; allowed: 0 <= begin <= end <= 3");
  }
}

TEST(Tensor, RankIsAtMostFour) {
  EXPECT_THROW(contiguous_view(nullptr, DType::Float32, {1, 1, 1, 1, 1}), InvalidArgument);
}

}  // namespace
}  // namespace magi
