// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "magi/attention_cuda.hpp"
#include "mask/random_mask.hpp"
#include "support/gpu/guarded_tensor.hpp"

namespace magi::test {

/// One call of the forward, or two that merge, against float64.
struct ForwardCase {
  Mask mask;
  DType type = DType::BFloat16;
  std::int32_t heads_q = 2;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  Layout layout = Layout::Contiguous;
  bool has_float_out = false;
  bool is_merging = false;  ///< the first half of the slices in one call, the rest in a second
  bool has_max_logits = false;
  std::int32_t num_sinks = 0;
  AttentionParams params;
  ForwardTuning tuning;
  double magnitude = 1.0;  ///< standard deviation of the inputs, roughly
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& stream, const ForwardCase& test);

/// Runs the case on poisoned outputs inside NaN guards and checks out, lse, max_logits, guards and
/// that a second run, by a list made on the device where ranges can say the mask, gives the bits of
/// a list of the host with as many heads per tile. Failures are gtest failures.
void check_forward(const ForwardCase& test);

}  // namespace magi::test
