// SPDX-License-Identifier: Apache-2.0
// Any text gives a plan whose tables can be read in full and that survives a round trip, or
// InvalidArgument.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "magi/error.hpp"
#include "magi/plan.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const magi::Plan& plan) {
  require(magi::plan_from_json(magi::plan_to_json(plan)) == plan);
  require(!magi::describe(plan).empty());
  for (std::int32_t rank = 0; rank < plan.config.num_ranks; ++rank) {
    require(!magi::row_exchanges(plan, rank, magi::Space::Keys).empty());
    require(!magi::row_exchanges(plan, rank, magi::Space::Queries).empty());
  }
  // A sweep over rows: only for masks that fuzzing can afford.
  if (plan.mask.rows_q <= 4096) magi::check_plan(plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check(magi::plan_from_json({reinterpret_cast<const char*>(data), size}));
  } catch (const magi::InvalidArgument&) {
    // The other allowed answer.
  }
  return 0;
}
