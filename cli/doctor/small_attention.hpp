// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "doctor/rank_place.hpp"

namespace magi::cli {

/// Runs a small attention, forward and backward, where `place` says (bfloat16 on a GPU, float32 in
/// host memory), and compares out, lse, dq, dk and dv with dense float64 attention by the rule of
/// tests/reference. One sentence for each that is off; empty where all are right.
std::vector<std::string> check_small_attention(const RankPlace& place);

}  // namespace magi::cli
