// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/micro_kernel_table.hpp"
#include "magi/error.hpp"

namespace magi::cpu {
namespace {

constexpr Isa kIsas[] = {Isa::Portable, Isa::Avx2};

/// Error in units of the last place of `truth`.
template <typename Real>
double ulps(Real got, long double truth) {
  const auto near = static_cast<Real>(truth);
  const Real spacing =
      std::nextafter(std::abs(near), std::numeric_limits<Real>::infinity()) - std::abs(near);
  return static_cast<double>(std::abs(static_cast<long double>(got) - truth) / spacing);
}

template <typename Real>
std::vector<Real> sweep(Real low, Real high, int count) {
  std::vector<Real> values;
  for (int i = 0; i <= count; ++i) {
    values.push_back(low + (high - low) * static_cast<Real>(i) / static_cast<Real>(count));
  }
  return values;
}

template <typename Real>
class Simd : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(Simd, Reals);

TYPED_TEST(Simd, Exp2IsWithinTwoUlps) {
  using Real = TypeParam;
  const Real lowest = sizeof(Real) == 4 ? -126 : -1022;
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    for (const auto& inputs :
         {sweep<Real>(lowest, -lowest, 30011), sweep<Real>(-1.5, 1.5, 30011)}) {
      std::vector<Real> got = inputs;
      micro_kernels<Real>(isa).exp2(got.data(), static_cast<std::int64_t>(got.size()));
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_LE(ulps(got[i], std::exp2(static_cast<long double>(inputs[i]))), 2) << inputs[i];
      }
    }
  }
}

TYPED_TEST(Simd, Exp2OfEdges) {
  using Real = TypeParam;
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  const Real lowest = std::numeric_limits<Real>::lowest();
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    std::vector<Real> values = {
        -kInfinity, lowest, -5000, 0, 1, 5000, kInfinity, std::numeric_limits<Real>::quiet_NaN()};
    micro_kernels<Real>(isa).exp2(values.data(), 8);
    const std::vector<Real> finite(values.begin(), values.end() - 1);
    EXPECT_EQ(finite, (std::vector<Real>{0, 0, 0, 1, 2, kInfinity, kInfinity}));
    EXPECT_TRUE(std::isnan(values[7]));
  }
}

TYPED_TEST(Simd, TanhIsWithinThreeUlps) {
  using Real = TypeParam;
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    for (const auto& inputs :
         {sweep<Real>(Real{-45} / 64, Real{45} / 64, 20011), sweep<Real>(-12, 12, 20011)}) {
      std::vector<Real> got = inputs;
      micro_kernels<Real>(isa).tanh(got.data(), static_cast<std::int64_t>(got.size()));
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_LE(ulps(got[i], std::tanh(static_cast<long double>(inputs[i]))), 3) << inputs[i];
      }
    }
  }
}

TYPED_TEST(Simd, AllFiniteSeesEveryPlace) {
  using Real = TypeParam;
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    std::vector<Real> values(37, Real{2});
    EXPECT_TRUE(micro_kernels<Real>(isa).all_finite(values.data(), 37));
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (const Real bad :
           {std::numeric_limits<Real>::quiet_NaN(), -std::numeric_limits<Real>::infinity()}) {
        values[i] = bad;
        EXPECT_FALSE(micro_kernels<Real>(isa).all_finite(values.data(), 37)) << i;
        values[i] = 2;
      }
    }
  }
}

TYPED_TEST(Simd, PanelsHoldColumnsOfRows) {
  using Real = TypeParam;
  constexpr std::int64_t kDim = 13, kLd = 16;
  std::vector<Real> rows(static_cast<std::size_t>(kBlockCols * kLd));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<Real>(i);
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    const auto& kernels = micro_kernels<Real>(isa);
    const std::int64_t width = kernels.panel_cols;
    std::vector<Real> panels(static_cast<std::size_t>(kBlockCols * kDim), Real{-1});
    kernels.pack_panels(rows.data(), kLd, kDim, {0, kBlockCols}, panels.data());
    for (std::int64_t c = 0; c < kBlockCols; ++c) {
      for (std::int64_t p = 0; p < kDim; ++p) {
        const std::int64_t at = c / width * width * kDim + p * width + c % width;
        ASSERT_EQ(panels[static_cast<std::size_t>(at)],
                  rows[static_cast<std::size_t>(c * kLd + p)]);
      }
    }
  }
}

TEST(Isa, BestIsTheWidestThatRuns) {
  EXPECT_TRUE(isa_available(Isa::Portable));
  const Isa widest = isa_available(Isa::Avx2) ? Isa::Avx2 : Isa::Portable;
  EXPECT_EQ(&micro_kernels<float>(Isa::Best), &micro_kernels<float>(widest));
  if (!isa_available(Isa::Avx2)) {
    EXPECT_THROW(micro_kernels<float>(Isa::Avx2), InvalidArgument);
  }
}

}  // namespace
}  // namespace magi::cpu
