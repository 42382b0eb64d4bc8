// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <vector>

#include "magi/bounds.hpp"
#include "plan/json_value.hpp"

namespace magi {
namespace {

using planner::json::Field;
using planner::json::Value;

Value schema(PlanBounds& bounds) {
  return planner::json::object([&bounds] {
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    return std::vector<Field>{
        {"format", planner::json::constant("magi bounds")},
        {"version", planner::json::version(1, "1")},
        {"rows", planner::json::integer64(bounds.rows)},
        {"bytes", planner::json::integer64(bounds.bytes)},
        {"contiguous_bytes", planner::json::integer64(bounds.contiguous_bytes)},
        {"layout_bytes", planner::json::integer64(bounds.layout_bytes)},
        {"balance", planner::json::number(bounds.balance)},
        {"forward_seconds", planner::json::number(bounds.forward_seconds)},
        {"backward_seconds", planner::json::number(bounds.backward_seconds)},
        {"area_steps", planner::json::integer(bounds.proof.area_steps, 0, kMost)},
        {"prices", planner::json::integers(bounds.proof.prices, -kMost, kMost)}};
  });
}

}  // namespace

std::string bounds_to_json(const PlanBounds& bounds) {
  PlanBounds copy = bounds;
  return planner::json::write(schema(copy));
}

PlanBounds bounds_from_json(std::string_view text) {
  PlanBounds bounds;
  planner::json::read(text, "bounds", schema(bounds));
  return bounds;
}

}  // namespace magi
