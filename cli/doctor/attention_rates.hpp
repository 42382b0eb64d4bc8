// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ranks/rank_place.hpp"

namespace magi::cli {

struct AttentionRates {
  double flops_per_second = 0.0;           ///< 4 per visible pair, query head and element of a head
  double backward_flops_per_second = 0.0;  ///< 10 of them
  double seconds_per_launch = 0.0;         ///< of a call with next to no work
};

/// Rates of the backend that serves the place's device, in its own types: bfloat16 on a GPU,
/// float32 in host memory. Masks are full, causal and packed causal documents.
AttentionRates attention_rates(const RankPlace& place);

}  // namespace magi::cli
