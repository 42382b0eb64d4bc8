// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/attention/combine.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/guarded_tensor.hpp"

// The kernels against the same calls in host memory.
namespace magi::test {
namespace {

constexpr std::int64_t kRows = 301, kHeads = 3, kDim = 24;

class CombineDeviceTest : public GpuTest {};

double value_at(std::int64_t seed, std::int64_t i) {
  return static_cast<double>((seed * 7919 + i * 104729) % 2001 - 1000) / 256.0;
}

void fill(GuardedTensor& tensor, std::int64_t seed) {
  std::int64_t i = 0;
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) tensor.set(row, head, d, value_at(seed, i++));
    }
  }
  tensor.upload_sync();
}

TEST_F(CombineDeviceTest, CombinesAsInHostMemory) {
  for (const DType from : {DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const DType to : {DType::Float32, DType::BFloat16, DType::Float16}) {
      for (const Combination how : {Combination::Write, Combination::Add, Combination::Max}) {
        GuardedTensor source(from, kRows, kHeads, kDim, Layout::PaddedRows);
        GuardedTensor target(to, kRows, kHeads, kDim, Layout::HeadMajor);
        fill(source, 1);
        fill(target, 2);
        GuardedTensor wanted(to, kRows, kHeads, kDim, Layout::HeadMajor);
        for (std::int64_t row = 0; row < kRows; ++row) {
          for (std::int64_t head = 0; head < kHeads; ++head) {
            for (std::int64_t d = 0; d < kDim; ++d) {
              const double seen = source.get(row, head, d);
              wanted.set(
                  row, head, d,
                  how == Combination::Write ? seen : combined(seen, target.get(row, head, d), how));
            }
          }
        }
        combine(source.view(), target.view(), how, nullptr);
        target.download_sync();
        EXPECT_TRUE(target.has_same_bytes(wanted))
            << "from " << dtype_name(from) << " to " << dtype_name(to);
      }
    }
  }
}

TEST_F(CombineDeviceTest, MergesRowsAsInHostMemory) {
  GuardedTensor part_out(DType::BFloat16, kRows, kHeads, kDim, Layout::PaddedRows);
  GuardedTensor sum_out(DType::Float32, kRows, kHeads, kDim, Layout::HeadMajor);
  GuardedTensor part_lse(DType::Float32, kRows, kHeads, 1),
      sum_lse(DType::Float32, kRows, kHeads, 1);
  fill(part_out, 3);
  fill(sum_out, 4);
  fill(part_lse, 5);
  fill(sum_lse, 6);
  part_lse.set(0, 0, 0, -INFINITY);
  sum_lse.set(1, 0, 0, -INFINITY);
  part_lse.upload_sync();
  sum_lse.upload_sync();
  const auto before = [&](std::int64_t row, std::int64_t head, std::int64_t d) {
    return value_at(4, (row * kHeads + head) * kDim + d);
  };
  const auto lse_before = [&](std::int64_t row, std::int64_t head) {
    return row == 1 && head == 0 ? -INFINITY : value_at(6, row * kHeads + head);
  };
  merge({part_out.view(), part_lse.view(2)}, {sum_out.view(), sum_lse.view(2)}, nullptr);
  sum_out.download_sync();
  sum_lse.download_sync();
  EXPECT_TRUE(sum_out.has_whole_guards());
  EXPECT_TRUE(sum_lse.has_whole_guards());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const MergedRow merged = merged_row(part_lse.get(row, head, 0), lse_before(row, head));
      ASSERT_NEAR(sum_lse.get(row, head, 0), merged.lse, 1e-6);
      for (std::int64_t d = 0; d < kDim; ++d) {
        const double wanted = merged.part_weight * part_out.get(row, head, d) +
                              merged.sum_weight * before(row, head, d);
        ASSERT_NEAR(sum_out.get(row, head, d), wanted, 1e-5) << "row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace magi::test
