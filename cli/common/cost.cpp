// SPDX-License-Identifier: Apache-2.0
#include "common/cost.hpp"

#include "base/env.hpp"
#include "common/files.hpp"
#include "magi/error.hpp"

namespace magi::cli {

CostFile cost_of_environment() {
  const std::string path = cost_file_env();
  if (path.empty()) return {.machine = "defaults", .cost = {}};
  const std::string text = read_file(kCostFileVariable, path);
  try {
    return cost_file_from_json(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string(kCostFileVariable) + ": " + error.what());
  }
}

}  // namespace magi::cli
