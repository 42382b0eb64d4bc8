// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "common/text_table.hpp"
#include "draw/numbers.hpp"
#include "simulate/sweep.hpp"

namespace magi::cli {
namespace {

using simulate::Figures;
using simulate::LinkClass;

std::string number_or(const std::optional<std::int32_t>& value, const char* absent) {
  return value ? std::to_string(*value) : absent;
}

std::string bound_of(const SweepRow& row) {
  if (row.is_baseline) return "-";
  if (!row.bound) return "auto";
  return *row.bound == 0 ? "none" : draw::bytes_text(*row.bound);
}

std::string mean_bytes(const SweepRow& row, LinkClass link) {
  return draw::bytes_text(row.figures.bytes(link) / row.ranks);
}

TableLine line_of(const SweepRow& row) {
  const Figures& figures = row.figures;
  TableLine line = {std::to_string(row.ranks),
                    draw::grouped(row.num_rows),
                    row.is_baseline ? "-" : number_or(row.chunk, "auto"),
                    row.is_baseline ? "-" : number_or(row.degree, "auto"),
                    bound_of(row),
                    figures.strategy};
  if (!figures.refusal.empty()) {
    line.insert(line.end(), 7, "-");
    return line;
  }
  const auto& [forward, backward] = figures.passes;
  line.push_back(draw::seconds_text(forward.seconds));
  line.push_back(draw::seconds_text(backward.seconds));
  line.push_back(draw::seconds_text(forward.exposed_seconds() + backward.exposed_seconds()));
  line.push_back(mean_bytes(row, LinkClass::Node));
  line.push_back(mean_bytes(row, LinkClass::Network));
  line.push_back(draw::bytes_text(figures.memory_bytes));
  line.push_back(draw::decimal(figures.balance(), 3));
  return line;
}

nlohmann::ordered_json pass_json(const simulate::PassFigures& pass) {
  return {{"seconds", pass.seconds},
          {"exposed_seconds", pass.exposed_seconds()},
          {"node_bytes", pass.bytes[static_cast<std::size_t>(LinkClass::Node)]},
          {"network_bytes", pass.bytes[static_cast<std::size_t>(LinkClass::Network)]}};
}

nlohmann::ordered_json row_json(const SweepRow& row) {
  const Figures& figures = row.figures;
  nlohmann::ordered_json json = {
      {"strategy", figures.strategy}, {"ranks", row.ranks}, {"rows", row.num_rows}};
  if (!row.is_baseline) {
    json["chunk"] = row.chunk ? nlohmann::ordered_json(*row.chunk) : nullptr;
    json["degree"] = row.degree ? nlohmann::ordered_json(*row.degree) : nullptr;
    if (row.bound) json["max_exchange_bytes"] = *row.bound;
  }
  if (!figures.refusal.empty()) {
    json["refusal"] = figures.refusal;
    return json;
  }
  json["forward"] = pass_json(figures.passes[0]);
  json["backward"] = pass_json(figures.passes[1]);
  json["memory_bytes"] = figures.memory_bytes;
  json["balance"] = figures.balance();
  return json;
}

}  // namespace

std::string to_table(const SweepOptions& options, const std::vector<SweepRow>& rows) {
  std::vector<TableLine> lines = {{"ranks", "rows", "chunk", "degree", "bound", "strategy",
                                   "forward", "backward", "exposed", "in nodes", "between",
                                   "memory", "balance"}};
  std::string refusals;
  for (const SweepRow& row : rows) {
    lines.push_back(line_of(row));
    if (row.figures.refusal.empty()) continue;
    refusals += row.figures.strategy + " on " + std::to_string(row.ranks) +
                " ranks: " + row.figures.refusal + "\n";
  }
  return options.cluster.machine + ", " + std::to_string(options.cluster.devices_per_node) +
         " devices in a node; bytes are sent by the mean rank in both passes\n\n" +
         text_table(lines, 0) + (refusals.empty() ? "" : "\n" + refusals);
}

std::string to_json(const SweepOptions& options, const std::vector<SweepRow>& rows) {
  nlohmann::ordered_json json = {{"machine", options.cluster.machine},
                                 {"devices_per_node", options.cluster.devices_per_node},
                                 {"heads_q", options.config.num_heads_q},
                                 {"heads_kv", options.config.num_heads_kv},
                                 {"head_dim", options.config.head_dim_qk},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const SweepRow& row : rows) json["rows"].push_back(row_json(row));
  return json.dump(1) + "\n";
}

}  // namespace magi::cli
