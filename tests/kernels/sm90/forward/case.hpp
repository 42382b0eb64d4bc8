// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

#include "kernels/sm90/guarded_call.hpp"

namespace magi::test {

/// One call of the forward, or two that merge.
struct ForwardCase : AttentionCase {
  bool is_merging = false;  ///< the first half of the slices in one call, the rest in a second
  bool has_max_logits = false;
  ForwardTuning tuning = {};

  DType out_type() const { return has_float_out || is_merging ? DType::Float32 : type; }
};

std::ostream& operator<<(std::ostream& stream, const ForwardCase& test);

/// Runs the case on poisoned outputs inside NaN guards and checks out, lse, max_logits, guards and
/// that a second run, by a list made on the device where ranges can say the mask, gives the bits of
/// a list of the host with as many heads per tile. Failures are gtest failures.
void check_forward(const ForwardCase& test);

}  // namespace magi::test
