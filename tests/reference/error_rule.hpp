// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <sstream>
#include <string>

#include "magi/tensor.hpp"
#include "reference/dense_attention.hpp"

// The one place for tolerances. 16-bit results are judged by a plain 16-bit computation of the same
// inputs: both are compared with float64, and ours may be at most twice as far off, plus one ulp.
namespace magi::reference {

/// Spacing of a type's values at 1.
inline double ulp_of(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return 0x1p-52;
    case DType::Float32:
      return 0x1p-23;
    case DType::Float16:
      return 0x1p-10;
    case DType::BFloat16:
      return 0x1p-7;
    case DType::Int32:
    case DType::Int64:
      break;
  }
  return 0;
}

/// Largest finite magnitude.
inline double max_magnitude(std::span<const double> values) {
  double most = 0;
  for (const double value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

/// Largest difference; infinite where one side is not finite and the other is not the same value,
/// or where sizes differ.
inline double max_error(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double error = std::abs(a[i] - b[i]);
    most = std::max(most, std::isfinite(error) ? error : std::numeric_limits<double>::infinity());
  }
  return most;
}

/// A measured error and what the rule allows.
struct Decision {
  double error = 0;
  double allowed = 0;

  bool holds() const { return error <= allowed; }
  std::string text() const {
    std::ostringstream stream;
    stream << "error " << error << ", allowed " << allowed;
    return stream.str();
  }
};

/// float64 and float32 results: so many ulps of the largest reference value (of 1 where that is
/// smaller). The counts cover sums over a few thousand keys.
inline Decision judge_exact(std::span<const double> got, std::span<const double> truth,
                            DType dtype) {
  constexpr double kUlps = 128;
  return {max_error(got, truth), kUlps * ulp_of(dtype) * std::max(1.0, max_magnitude(truth))};
}

/// Logarithms of sums of a GPU's approximate exponentials.
inline Decision judge_approximate(std::span<const double> got, std::span<const double> truth) {
  constexpr double kTolerance = 2e-4;
  return {max_error(got, truth), kTolerance * std::max(1.0, max_magnitude(truth))};
}

/// 16-bit results: at most twice the error of the plain 16-bit computation plus one ulp of the
/// largest reference value.
inline Decision judge_rounded(std::span<const double> got, std::span<const double> truth,
                              std::span<const double> plain, DType dtype) {
  return {max_error(got, truth),
          2 * max_error(plain, truth) + ulp_of(dtype) * max_magnitude(truth)};
}

/// On top of that, in gradients of q and k: gradients of scores are differences that may cancel, as
/// those of rows that see one key do, where sums in the type of `sums` leave a rest, which is then
/// multiplied with `factors`.
inline double cancelled_noise(const DenseInput& in, std::span<const double> dout,
                              std::span<const double> factors, DType sums = DType::Float32) {
  constexpr double kUlps = 32;
  const double scale =
      in.params.softmax_scale > 0.0 ? in.params.softmax_scale : 1.0 / std::sqrt(in.dim_qk);
  return kUlps * ulp_of(sums) * std::sqrt(in.dim_v) * max_magnitude(dout) * max_magnitude(in.v) *
         scale * max_magnitude(factors);
}

}  // namespace magi::reference
