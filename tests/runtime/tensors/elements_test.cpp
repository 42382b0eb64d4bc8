// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensors/elements.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/half.hpp"
#include "magi/error.hpp"

namespace magi {
namespace {

/// [3, 2, 4] inside a larger array, with gaps along every axis.
TensorView strided_view(std::vector<float>& storage) {
  storage.assign(3 * 40, -1.0f);
  TensorView view = contiguous_view(storage.data(), DType::Float32, {3, 2, 4});
  view.stride = {40, 11, 2, 0};
  return view;
}

float at(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t k) {
  return static_cast<const float*>(
      view.data)[i * view.stride[0] + j * view.stride[1] + k * view.stride[2]];
}

TEST(CopyElements, KeepsTheOrderForAnyStrides) {
  HostTensor<float> source({3, 2, 4});
  std::iota(source.elements().begin(), source.elements().end(), 1.0f);
  std::vector<float> storage;
  const TensorView strided = strided_view(storage);
  copy_elements(source, strided);
  float expected = 1.0f;
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 2; ++j) {
      for (std::int64_t k = 0; k < 4; ++k) EXPECT_EQ(at(strided, i, j, k), expected++);
    }
  }
  EXPECT_EQ(std::ranges::count(storage, -1.0f), 3 * 40 - 24) << "a gap was written";
  HostTensor<float> back({3, 2, 4});
  copy_elements(strided, back);
  EXPECT_TRUE(std::ranges::equal(back.elements(), source.elements()));
}

TEST(CopyElements, NoRowsNeedNoData) {
  const TensorView nothing = contiguous_view(nullptr, DType::Float32, {0, 2, 4});
  EXPECT_NO_THROW(copy_elements(nothing, nothing));
}

TEST(ConvertElements, RoundsToNearestEvenInEveryType) {
  HostTensor<double> source({4});
  const double values[] = {1.0, 1.0 + 0x1p-9, -3.14159, 65504.0};
  std::ranges::copy(values, source.elements().begin());
  HostTensor<std::uint16_t> narrow({4});
  copy_elements(source, narrow);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(narrow.elements()[i], float_to_bfloat16(static_cast<float>(values[i])));
  }
  HostTensor<float> wide({4});
  copy_elements(narrow, wide);
  EXPECT_EQ(wide.elements()[1], 1.0f);
  TensorView half = narrow;
  half.dtype = DType::Float16;
  copy_elements(source, half);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(narrow.elements()[i], float_to_float16(static_cast<float>(values[i])));
  }
}

TEST(ConvertElements, RefusesIntegers) {
  const HostTensor<std::int32_t> integers({2});
  const HostTensor<float> floats({2});
  EXPECT_THROW(copy_elements(integers, floats), InvalidArgument);
}

TEST(FillElements, FillsIntegersAndHalves) {
  HostTensor<std::int64_t> integers({3});
  fill_elements(integers, -100.0);
  EXPECT_EQ(integers.elements()[2], -100);
  HostTensor<std::uint16_t> halves({3});
  fill_elements(halves, 1.0);
  EXPECT_EQ(halves.elements()[2], 0x3f80);
}

}  // namespace
}  // namespace magi
