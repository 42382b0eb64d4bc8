// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/check_attention.hpp"

// Stages by heads over ranks that write each other's memory: a call becomes calls of a section of
// the kv heads, each without stages. These follow each other as layers do, so the areas that
// passes take in turn hold the keys and partial gradients of a section, and nothing is merged.
namespace magi {

/// Equal sections of kv heads that need no more memory than the stages of a plan, where these are
/// sections of kv heads that take turns in memory; else 1.
std::int32_t num_head_sections(const Plan& plan);

/// The plan of one section, of overlap degree 0: the same rows travel. The same on all ranks.
std::shared_ptr<const Plan> plan_of_section(const Plan& plan, std::int32_t num_sections);

/// Calls `body` with the arguments of each section, in order.
void for_each_section(const PassArgs& args, std::int32_t num_sections,
                      const std::function<void(const PassArgs&)>& body);

}  // namespace magi
