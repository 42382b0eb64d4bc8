// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/rank_place.hpp"
#include "magi/comm.hpp"

// A small attention, forward and backward, compared with dense float64 attention by the rule of
// tests/reference: out, lse, dq, dk and dv, in bfloat16 on a GPU and in float32 in host memory. One
// sentence for each that is off; empty where all are right.
namespace magi::cli {

/// One call where `place` says, by a backend that serves it; an empty name: the library's own.
std::vector<std::string> check_small_attention(const RankPlace& place,
                                               const std::string& backend = {});

/// What a rank does with its group and at its place.
using RankBody = std::function<void(Communicator& group, const RankPlace& place)>;
/// Likewise over two ranks: planned, cast, attended and reduced. `run` calls its body once for each
/// of two ranks that share this process's memory.
std::vector<std::string> check_over_two_ranks(const std::string& backend,
                                              const std::function<void(const RankBody&)>& run);

}  // namespace magi::cli
