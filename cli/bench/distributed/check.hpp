// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/distributed/problem.hpp"

namespace magi::cli {

/// Norm of the difference over the norm of what is wanted, the largest of out, dq, dk and dv of
/// this rank's rows: those of `side` against those of `alone`. Not a number where a result is none.
double distance_sync(RankDevice& device, const Side& side, const Side& alone);
/// What it may be for results of this type.
double allowed_distance(DType type);

}  // namespace magi::cli
