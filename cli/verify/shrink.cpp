// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include "verify/checks.hpp"

namespace magi::cli {
namespace {

/// The case without slices [begin, end).
VerifyCase without_slices(VerifyCase smaller, std::size_t begin, std::size_t end) {
  auto& slices = smaller.mask.slices;
  slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(begin),
               slices.begin() + static_cast<std::ptrdiff_t>(std::min(end, slices.size())));
  return smaller;
}

/// Changes that each make a case simpler.
const std::vector<std::function<void(VerifyCase&)>>& simplifications() {
  static const std::vector<std::function<void(VerifyCase&)>> all = {
      [](VerifyCase& c) { c.num_sinks = 0; },
      [](VerifyCase& c) { c.has_dlse = false; },
      [](VerifyCase& c) { c.params = {}; },
      [](VerifyCase& c) { c.config.num_ranks = std::max(1, c.config.num_ranks - 1); },
      [](VerifyCase& c) { c.config.num_heads_q = c.config.num_heads_kv; },
      [](VerifyCase& c) { c.config.num_heads_q = c.config.num_heads_kv = 1; },
      [](VerifyCase& c) { c.config.head_dim_qk = c.config.head_dim_v = 1; },
      [](VerifyCase& c) { c.config.placement_k.reset(); },
      [](VerifyCase& c) { c.config.placement = {}; },
      [](VerifyCase& c) { c.config.overlap_degree = 1; },
      [](VerifyCase& c) { c.config.devices_per_node = 0; },
      [](VerifyCase& c) { c.config.work = WorkMode::Keys; },
      [](VerifyCase& c) {
        c.dtype = DType::Float64;
        c.config.element_bytes = 8;
      },
  };
  return all;
}

}  // namespace

VerifyCase shrink_case(const VerifyCase& failing, int most_tries) {
  VerifyCase best = failing;
  int tries = 0;
  const auto keep_if_failing = [&](const VerifyCase& candidate) {
    if (candidate == best || tries >= most_tries) return false;
    ++tries;
    if (verify(candidate).empty()) return false;
    best = candidate;
    return true;
  };
  bool is_smaller = true;
  while (is_smaller && tries < most_tries) {
    is_smaller = false;
    // Halves first, then quarters, down to single slices.
    for (std::size_t width = std::max<std::size_t>(best.mask.slices.size() / 2, 1); width > 0;
         width /= 2) {
      for (std::size_t begin = 0; begin < best.mask.slices.size();) {
        const bool is_kept = keep_if_failing(without_slices(best, begin, begin + width));
        is_smaller = is_smaller || is_kept;
        if (!is_kept) begin += width;
      }
    }
    for (const auto& simplify : simplifications()) {
      VerifyCase candidate = best;
      simplify(candidate);
      if (keep_if_failing(candidate)) is_smaller = true;
    }
  }
  return best;
}

}  // namespace magi::cli
