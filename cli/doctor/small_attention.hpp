// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "magi/comm.hpp"
#include "ranks/rank_place.hpp"

namespace magi::cli {

/// A rank's work with its group and at its place.
using RankBody = std::function<void(Communicator& group, const RankPlace& place)>;

/// Compares a small attention, forward and backward, with dense float64 attention by the rule of
/// tests/reference: out, lse, dq, dk and dv, in bfloat16 on a GPU and in float32 in host memory.
/// Gives one sentence for each that is off. `run` calls its body once for each of `num_ranks` ranks
/// that share this process's memory; an empty backend: the library's own.
std::vector<std::string> check_small_attention(std::int32_t num_ranks, const std::string& backend,
                                               const std::function<void(const RankBody&)>& run);

}  // namespace magi::cli
