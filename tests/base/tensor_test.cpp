// SPDX-License-Identifier: Apache-2.0
#include "magi/tensor.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "magi/error.hpp"
#include "support/refusal.hpp"

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
  EXPECT_EQ(testing::refusal_of([&] { view.slice(1, 2, 4); }),
            "slice is 2:4; allowed: 0 <= begin <= end <= 3");
}

TEST(Tensor, RankIsAtMostFour) {
  EXPECT_THROW(contiguous_view(nullptr, DType::Float32, {1, 1, 1, 1, 1}), InvalidArgument);
}

TEST(Tensor, ExtentsThatNoMemoryHasAreNamed) {
  const auto refusal = [](std::initializer_list<std::int64_t> shape) {
    return testing::refusal_of([&] { HostTensor<float> tensor(shape); });
  };
  EXPECT_EQ(refusal({-1, 4}), "shape[0] is -1; allowed: 0 to 2^40");
  EXPECT_EQ(refusal({4, std::int64_t{1} << 41}), "shape[1] is 2199023255552; allowed: 0 to 2^40");
  // Its 2^70 elements are 0 in 64 bits: a tensor of that shape would have no memory.
  EXPECT_EQ(refusal({std::int64_t{1} << 40, 1 << 30}),
            "shape[0] is 1099511627776; allowed: a shape of at most 2^40 elements");
  EXPECT_EQ(refusal({0, 4}), "accepted");
}

TEST(Tensor, AnEmptyAxisDoesNotHideOthersThatAreTooLarge) {
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_THROW(contiguous_view(nullptr, DType::Float32, {0, large, large}), InvalidArgument);
  EXPECT_EQ(contiguous_view(nullptr, DType::Float32, {large, large, 0}).num_elements(), 0);
}

}  // namespace
}  // namespace magi
