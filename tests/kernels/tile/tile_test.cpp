// SPDX-License-Identifier: Apache-2.0
#include <tuple>
#include <vector>

#include "kernels/tile/probe.hpp"
#include "mask/random_mask.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/guarded_tensor.hpp"

namespace magi::test {
namespace {

constexpr std::int64_t kRows = 64;

/// Small integers: every product and sum is exact, so results must be equal bit for bit.
void fill_integers(GuardedTensor& tensor, RandomStream& random, int largest) {
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      tensor.set(row, 0, d, random.between(-largest, largest));
    }
  }
  tensor.upload_sync();
}

class TileTest : public GpuTest,
                 public ::testing::WithParamInterface<std::tuple<DType, int, int>> {};

TEST_P(TileTest, ScoresOperandsAreKMajor) {
  const auto [type, columns, dim] = GetParam();
  RandomStream random(7);
  GuardedTensor a(type, kRows, 1, dim);
  GuardedTensor b(type, columns, 1, dim);
  GuardedTensor d(DType::Float32, kRows, 1, columns);
  fill_integers(a, random, 8);
  fill_integers(b, random, 8);
  d.upload_sync();
  probe::multiply_abt(a.view(), b.view(), static_cast<float*>(d.view().data), nullptr);
  d.download_sync();
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      double expected = 0.0;
      for (std::int64_t i = 0; i < dim; ++i) expected += a.get(row, 0, i) * b.get(column, 0, i);
      ASSERT_EQ(d.get(row, 0, column), expected) << "row " << row << " column " << column;
    }
  }
}

TEST_P(TileTest, ValuesOperandIsMnMajorAndProbabilitiesAreInRegisters) {
  const auto [type, depth, dim] = GetParam();
  if (depth > 128) GTEST_SKIP() << "the probe multiplies depths 64 and 128";
  RandomStream random(8);
  GuardedTensor p(DType::Float32, kRows, 1, depth);
  GuardedTensor v(type, depth, 1, dim);
  GuardedTensor d(DType::Float32, kRows, 1, dim);
  fill_integers(p, random, 8);
  fill_integers(v, random, 8);
  d.upload_sync();
  probe::multiply_pv(static_cast<const float*>(p.view().data), v.view(),
                     static_cast<float*>(d.view().data), nullptr);
  d.download_sync();
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < dim; ++column) {
      double expected = 0.0;
      for (std::int64_t i = 0; i < depth; ++i) expected += p.get(row, 0, i) * v.get(i, 0, column);
      ASSERT_EQ(d.get(row, 0, column), expected) << "row " << row << " column " << column;
    }
  }
}

TEST_P(TileTest, FragmentsReachMemoryThroughSharedMemory) {
  const auto [type, columns, dim] = GetParam();
  RandomStream random(9);
  GuardedTensor in(DType::Float32, kRows, 1, dim);
  GuardedTensor out(type, kRows - columns % 3, 1, dim);  // rows past the end are dropped
  fill_integers(in, random, 100);
  out.upload_sync();
  probe::store_through_shared(static_cast<const float*>(in.view().data), out.view(), nullptr);
  out.download_sync();
  for (std::int64_t row = 0; row < out.rows(); ++row) {
    for (std::int64_t d = 0; d < dim; ++d) {
      ASSERT_EQ(out.get(row, 0, d), in.get(row, 0, d)) << "row " << row << " dim " << d;
    }
  }
  EXPECT_TRUE(out.has_whole_guards());
}

TEST_P(TileTest, MaskKeepsExactlyTheColumnsInRange) {
  const auto [type, columns, dim] = GetParam();
  RandomStream random(10);
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<int> low(kRows);
    std::vector<int> high(kRows);
    for (std::size_t row = 0; row < kRows; ++row) {
      low[row] = random.chance(20) ? -(1 << 30) : random.between(-20, columns + 20);
      high[row] = random.chance(20) ? 1 << 30 : random.between(-20, columns + 20);
    }
    const DeviceBuffer low_buffer = to_device_sync<int>(low);
    const DeviceBuffer high_buffer = to_device_sync<int>(high);
    const DeviceBuffer keep_buffer(sizeof(int) * kRows * static_cast<std::size_t>(columns));
    probe::mask_tile(static_cast<const int*>(low_buffer.data()),
                     static_cast<const int*>(high_buffer.data()), columns,
                     static_cast<int*>(keep_buffer.data()), nullptr);
    const auto count = static_cast<std::size_t>(kRows * columns);
    const std::vector<int> keep = to_host_sync<int>(keep_buffer.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t row = i / static_cast<std::size_t>(columns);
      const int column = static_cast<int>(i) % columns;
      ASSERT_EQ(keep[i], column >= low[row] && column < high[row] ? 1 : 0)
          << "column " << column << " of [" << low[row] << ", " << high[row] << ")";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TileTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            ::testing::Values(64, 128),
                                            ::testing::Values(64, 128)));
INSTANTIATE_TEST_SUITE_P(WideShape, TileTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            ::testing::Values(80), ::testing::Values(256)));

}  // namespace
}  // namespace magi::test
