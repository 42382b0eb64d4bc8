// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/json.hpp"

namespace magi::planner {

/// The name of a machine in a file that describes it.
json::Value machine_name(std::string& target);
/// Throws InvalidArgument for a name that such a file would not hold.
void require_machine_name(const std::string& name);

}  // namespace magi::planner
