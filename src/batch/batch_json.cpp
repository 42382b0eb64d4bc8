// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <tuple>

#include "base/check.hpp"
#include "base/json.hpp"
#include "batch/work.hpp"
#include "magi/batch.hpp"

namespace magi {
namespace {

using json::Column;
using json::Value;
using Fields = std::vector<json::Field>;

constexpr std::int32_t kVersion = 1;
constexpr std::int32_t kMaxInt = std::numeric_limits<std::int32_t>::max();

Value cost(BatchCost& c) {
  return json::object([&c] {
    return Fields{{"flops_per_token", json::number(c.flops_per_token)},
                  {"flops_per_pair", json::number(c.flops_per_pair)},
                  {"bytes_per_token", json::number(c.bytes_per_token)},
                  {"flops_per_second", json::number(c.flops_per_second)},
                  {"bytes_per_second", json::number(c.bytes_per_second)},
                  {"network_bytes_per_second", json::number(c.network_bytes_per_second)}};
  });
}

Value config(BatchConfig& c) {
  return json::object([&c] {
    return Fields{{"num_ranks", json::integer(c.num_ranks, 1, kMaxInt)},
                  {"rows_per_rank", json::integer(c.rows_per_rank, 1, kMaxRows)},
                  {"devices_per_node", json::integer(c.devices_per_node, 0, kMaxInt)},
                  {"num_micro_batches", json::integer(c.num_micro_batches, 0, kMaxInt)},
                  {"chunk_size", json::integer(c.chunk_size, 1, kMaxRows)},
                  {"cost", cost(c.cost)}};
  });
}

/// An array with one value for each element of `list`.
template <typename Element, typename MakeValue>
Value array_of(std::vector<Element>& list, const char* allowed, MakeValue make) {
  Value value{.allowed = allowed};
  value.element = [&list, make](std::size_t i) {
    if (i == list.size()) list.emplace_back();
    return make(list[i]);
  };
  value.size = [&list] { return list.size(); };
  return value;
}

Value parts(MicroBatch& micro_batch) {
  constexpr Column kIndex{0, kMaxInt, {}};
  return json::table<BatchPart, 3>(
      micro_batch.parts, "[sample, rank, rows]", {kIndex, kIndex, Column{1, kMaxRows, {}}},
      [](const BatchPart& p) {
        return std::array{p.sample, p.rank, p.rows};
      },
      [](std::span<const std::int32_t> v) {
        return BatchPart{v[0], v[1], v[2]};
      });
}

Value report(BatchReport& r) {
  return json::object([&r] {
    return Fields{{"rank_rows", json::integers64(r.rank_rows)},
                  {"rank_seconds", array_of(r.rank_seconds, "an array of numbers",
                                            [](double& value) { return json::number(value); })},
                  {"step_seconds", json::number(r.step_seconds)},
                  {"lower_bound_seconds", json::number(r.lower_bound_seconds)},
                  {"node_bytes", json::integer64(r.node_bytes)},
                  {"network_bytes", json::integer64(r.network_bytes)}};
  });
}

/// Samples as two arrays: a table has no room for numbers of pairs.
struct Columns {
  std::vector<std::int32_t> rows;
  std::vector<std::int64_t> pairs;
};

Value schema(BatchPlan& p, Columns& samples) {
  return json::object([&p, &samples] {
    Value micro_batches = array_of(p.micro_batches, "an array of micro-batches",
                                   [](MicroBatch& one) { return parts(one); });
    micro_batches.separator = ",\n";
    return Fields{{"format", json::constant("magi batch")},
                  {"version", json::version(kVersion, "1")},
                  {"config", config(p.config)},
                  {"rows", json::integers(samples.rows, 0, kMaxRows)},
                  {"pairs", json::integers64(samples.pairs)},
                  {"micro_batches", std::move(micro_batches)},
                  {"report", report(p.report)}};
  });
}

}  // namespace

std::string batch_to_json(const BatchPlan& plan) {
  Columns samples;
  for (const BatchSample& sample : plan.samples) {
    samples.rows.push_back(sample.rows);
    samples.pairs.push_back(sample.pairs);
  }
  // The schema binds variables for both ways; writing changes none.
  return json::write(schema(const_cast<BatchPlan&>(plan), samples)) + "\n";
}

BatchPlan batch_from_json(std::string_view text) {
  BatchPlan plan;
  Columns samples;
  json::read(text, "batch JSON", schema(plan, samples));
  if (samples.rows.size() != samples.pairs.size()) {
    throw invalid("batch JSON: number of pairs", samples.pairs.size(),
                  std::to_string(samples.rows.size()) + ", one a sample");
  }
  for (std::size_t i = 0; i < samples.rows.size(); ++i) {
    plan.samples.push_back({samples.rows[i], samples.pairs[i]});
  }
  const std::vector<std::string> problems = check_batch(plan);
  if (!problems.empty()) {
    throw InvalidArgument("batch JSON: " + problems.front() +
                          "; allowed: parts that hold each sample once, and their figures");
  }
  return plan;
}

}  // namespace magi
