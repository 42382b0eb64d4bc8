// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/bounds.hpp"
#include "magi/placement.hpp"

namespace magi {
namespace {

/// The names in the order of PlacementAlgorithm.
constexpr std::array<const char*, kNumPlacementAlgorithms> kNames = {
    "auto", "thorough", "zigzag", "affinity", "min_heap", "random_select", "sequential_select"};

}  // namespace

const char* placement_name(PlacementAlgorithm algorithm) {
  require_between("placement algorithm", static_cast<std::int32_t>(algorithm), 0,
                  kNumPlacementAlgorithms - 1);
  return kNames[static_cast<std::size_t>(algorithm)];
}

PlacementAlgorithm placement_from_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) {
    std::string names;
    for (const char* known : kNames) {
      names += (names.empty() ? "" : ", ") + std::string(known);
    }
    throw invalid("placement algorithm", '"' + printable(name, 40) + '"', names);
  }
  return static_cast<PlacementAlgorithm>(found - kNames.begin());
}

}  // namespace magi
