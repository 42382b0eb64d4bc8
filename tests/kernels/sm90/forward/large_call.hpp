// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "cuda/memory.hpp"
#include "magi/attention_cuda.hpp"

namespace magi::test {

struct LargeShape {
  std::int64_t rows_q = 0;
  std::int64_t rows_k = 0;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t dim = 128;
};

/// Tensors too large for whole checks: contents by hashed_bfloat16, chosen rows checked against
/// float64.
class LargeCall {
 public:
  explicit LargeCall(const LargeShape& shape);

  /// Without slices.
  ForwardArgs args() const;
  const DeviceBuffer& out() const { return out_; }
  const DeviceBuffer& lse() const { return lse_; }
  /// Fills out and lse with NaN.
  void poison_sync() const;
  /// Checks out and lse of one row and head; a gtest failure names them.
  void check_row(std::span<const BandSlice> slices, std::int64_t row, std::int64_t head) const;

 private:
  LargeShape shape_;
  DeviceBuffer q_, k_, v_, out_, lse_;
};

}  // namespace magi::test
