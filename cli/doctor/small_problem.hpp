// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "magi/mask.hpp"
#include "ranks/rank_place.hpp"
#include "reference/dense_attention.hpp"

// An attention that takes no time, and what it comes to in float64.
namespace magi::cli {

/// Results in float64, row-major as the tensors.
struct SmallResults {
  std::vector<double> out, lse, dq, dk, dv;
};

/// Packed causal documents of 200 rows, with random q, k, v and dout of a type: bfloat16 or
/// float32.
struct SmallProblem {
  explicit SmallProblem(DType checked);

  static constexpr std::int32_t kRows = 200;
  static constexpr std::int32_t kHeadsQ = 4;
  static constexpr std::int32_t kHeadsKv = 2;
  static constexpr std::int32_t kDim = 64;

  DType type = DType::Float32;
  Mask mask;
  reference::DenseInput input;
  std::vector<double> dout;

  /// One sentence for each result that is off by the rule of tests/reference, for a GPU's bfloat16
  /// or for float32; empty where all are right.
  std::vector<std::string> judge(const SmallResults& got) const;
};

/// The type in which a place is checked.
inline DType checked_type(const RankPlace& place) {
  return place.device == kCpuDevice ? DType::Float32 : DType::BFloat16;
}

/// A tensor of bfloat16 or float32 at a place, with values to and from double.
class PlacedValues {
 public:
  PlacedValues(const RankPlace& place, DType type, std::initializer_list<std::int64_t> shape)
      : place_(place), tensor_(place, type, shape) {}
  PlacedValues(const RankPlace& place, DType type, std::initializer_list<std::int64_t> shape,
               const std::vector<double>& values);

  const TensorView& view() const { return tensor_.view; }
  std::vector<double> values_sync() const;

 private:
  const RankPlace& place_;
  PlacedTensor tensor_;
};

}  // namespace magi::cli
