// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/random.hpp"
#include "magi/plan.hpp"

namespace magi::testing {

/// A small random plan: a few dozen rows on up to four ranks, one in eight with received queries.
Plan small_random_plan(RandomStream& random);

/// Changes a plan in one to three places; mostly the digest, often the figures too are then made
/// anew, so that only the tables can tell. Returns what was done.
std::string mutate(RandomStream& random, Plan& plan);

/// How the checker did beside plan_oracle.hpp.
struct MutantCounts {
  std::int64_t num_wrong = 0;      ///< plans that are wrong
  std::int64_t num_refused = 0;    ///< of these, those that the checker refuses
  std::int64_t num_right = 0;      ///< plans that are still right
  std::int64_t num_accepted = 0;   ///< of these, those that the checker accepts
  std::string first_disagreement;  ///< empty where there is none
};

/// Judges mutants of random plans, 16 of each, with seeds from `seed` on.
MutantCounts judge_mutants(std::uint64_t seed, std::int64_t num_mutants);

}  // namespace magi::testing
