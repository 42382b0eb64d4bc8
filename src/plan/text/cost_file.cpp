// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "magi/cost.hpp"
#include "plan/text/cost_fields.hpp"
#include "plan/text/machine_name.hpp"

namespace magi {
namespace {

using json::Value;
using Fields = std::vector<json::Field>;

Value schema(CostFile& file) {
  return json::object([&file] {
    Fields fields{{"format", json::constant("magi cost")},
                  {"version", json::version(1, "1")},
                  {"machine", planner::machine_name(file.machine)}};
    for (auto& field : planner::cost_fields(file.cost)) fields.push_back(std::move(field));
    return fields;
  });
}

void require_rate(const char* name, double value) {
  if (!std::isfinite(value) || value <= 0.0) throw invalid(name, value, "finite and above 0");
}

/// Delays may be zero; one longer than a second is no machine's.
void require_delay(const char* name, double value) {
  if (!(value >= 0.0 && value <= 1.0)) throw invalid(name, value, "0 to 1 second");
}

}  // namespace

void validate(const CostModel& cost) {
  require_rate("cost.flops_per_second", cost.flops_per_second);
  require_rate("cost.backward_flops_per_second", cost.backward_flops_per_second);
  require_rate("cost.bytes_per_second", cost.bytes_per_second);
  require_rate("cost.memory_bytes_per_second", cost.memory_bytes_per_second);
  require_delay("cost.seconds_per_transfer", cost.seconds_per_transfer);
  require_delay("cost.seconds_per_launch", cost.seconds_per_launch);
  require_delay("cost.seconds_per_run", cost.seconds_per_run);
  require_rate("cost.network_bytes_per_second", cost.network_bytes_per_second);
  require_delay("cost.network_seconds_per_transfer", cost.network_seconds_per_transfer);
}

std::int32_t crossing_price(const CostModel& cost) {
  constexpr double kMost = 1024.0;
  const double price = std::round(cost.bytes_per_second / cost.network_bytes_per_second);
  return static_cast<std::int32_t>(std::clamp(price, 1.0, kMost));
}

std::string cost_file_to_json(const CostFile& file) {
  planner::require_machine_name(file.machine);
  validate(file.cost);
  CostFile copy = file;
  return json::write(schema(copy)) + "\n";
}

CostFile cost_file_from_json(std::string_view text) {
  CostFile file;
  json::read(text, "cost file", schema(file));
  validate(file.cost);
  return file;
}

}  // namespace magi
