// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "magi/attention.hpp"
#include "support/gpu/guarded_tensor.hpp"

namespace magi::test {

/// One attention problem on the host.
struct HostProblem {
  const GuardedTensor* q = nullptr;
  const GuardedTensor* k = nullptr;
  const GuardedTensor* v = nullptr;
  std::span<const BandSlice> slices;
  const GuardedTensor* sink = nullptr;  ///< [1 or rows, sinks, heads]
  AttentionParams params;
};

/// out [rows, heads, dim_v], lse [rows, heads], max_logits [heads], and the same out computed the
/// plain way in 16 bits: scores, probabilities and out rounded to the type of q.
struct HostResult {
  std::vector<double> out;
  std::vector<double> plain_out;
  std::vector<double> lse;
  std::vector<double> max_logits;
};

/// float64, row by row.
HostResult attend_on_host(const HostProblem& problem);

}  // namespace magi::test
