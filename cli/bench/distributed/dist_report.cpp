// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "bench/distributed/dist_bench.hpp"
#include "common/text_table.hpp"
#include "draw/numbers.hpp"

namespace magi::cli {
namespace {

using draw::decimal;

constexpr double kTera = 1e12;
constexpr double kMilli = 1e-3;

const char* type_name(const DistBenchOptions& options) {
  return options.is_cpu ? "float32" : "bfloat16";
}

/// "8k" for 8192.
std::string tokens_text(std::int32_t tokens) {
  constexpr std::int32_t kKilo = 1024;
  if (tokens % kKilo == 0) return std::to_string(tokens / kKilo) + "k";
  return std::to_string(tokens);
}

TableLine line_of(const DistBenchOptions& options, const DistCell& cell, DistSide side,
                  std::size_t pass) {
  const DistSideFigures& figures = cell.sides[static_cast<std::size_t>(side)];
  const DistPassFigures& of_pass = figures.passes[pass];
  const bool is_alone = side == DistSide::Alone;
  const bool has_silent = of_pass.silent_seconds > 0.0;
  return {options.masks[static_cast<std::size_t>(cell.mask)],
          dist_side_name(side),
          kDistPasses[pass],
          std::to_string(cell.ranks),
          tokens_text(cell.tokens),
          decimal(of_pass.flops_per_second / kTera, options.is_cpu ? 4 : 1),
          is_alone ? "-" : decimal(of_pass.share, 3),
          decimal(of_pass.median_seconds / kMilli, 3),
          has_silent ? decimal(of_pass.exposed_seconds() / kMilli, 3) : "-",
          is_alone ? "-" : draw::bytes_text(of_pass.bytes_sent),
          figures.has_memory ? draw::bytes_text(figures.extra_bytes + figures.outside_bytes) : "-"};
}

nlohmann::ordered_json pass_json(const DistPassFigures& figures) {
  nlohmann::ordered_json json = {{"ms", figures.median_seconds / kMilli},
                                 {"low_ms", figures.low_seconds / kMilli},
                                 {"high_ms", figures.high_seconds / kMilli},
                                 {"tflops", figures.flops_per_second / kTera},
                                 {"share", figures.share}};
  if (figures.silent_seconds > 0.0) {
    json["without_communication_ms"] = figures.silent_seconds / kMilli;
    json["exposed_ms"] = figures.exposed_seconds() / kMilli;
  }
  return json;
}

nlohmann::ordered_json side_json(const DistBenchOptions& options, DistSide side,
                                 const DistSideFigures& figures) {
  nlohmann::ordered_json json = {{"kind", dist_side_kind(side)}, {"error", figures.error}};
  json["extra_bytes"] =
      figures.has_memory ? nlohmann::ordered_json(figures.extra_bytes) : nlohmann::ordered_json();
  json["outside_bytes"] =
      figures.has_memory ? nlohmann::ordered_json(figures.outside_bytes) : nlohmann::ordered_json();
  for (std::size_t pass = 0; pass < kDistPasses.size(); ++pass) {
    const std::string name = kDistPasses[pass];
    json[name + "_bytes"] = figures.passes[pass].bytes_sent;
    if (options.times_pass[pass]) json[name] = pass_json(figures.passes[pass]);
  }
  return json;
}

nlohmann::ordered_json cell_json(const DistBenchOptions& options, const DistCell& cell) {
  nlohmann::ordered_json json = {{"mask", options.masks[static_cast<std::size_t>(cell.mask)]},
                                 {"tokens", cell.tokens},
                                 {"ranks", cell.ranks},
                                 {"transport", transport_name(cell.transport)},
                                 {"slices", cell.num_slices},
                                 {"area", cell.area},
                                 {"rounds", cell.rounds},
                                 {"sides", nlohmann::ordered_json::object()}};
  for (const DistSide side : kDistSides) {
    const DistSideFigures& figures = cell.sides[static_cast<std::size_t>(side)];
    if (!figures.is_there) continue;
    json["sides"][dist_side_name(side)] = side_json(options, side, figures);
  }
  return json;
}

/// "592 / 461" for the passes that are timed.
template <typename Text>
std::string by_pass(const DistBenchOptions& options, const DistSideFigures& figures,
                    const Text& text) {
  std::string joined;
  for (std::size_t pass = 0; pass < kDistPasses.size(); ++pass) {
    if (!options.times_pass[pass]) continue;
    joined += (joined.empty() ? "" : " / ") + text(figures.passes[pass]);
  }
  return joined;
}

}  // namespace

std::string to_summary(const DistBenchOptions& options, const DistCell& cell) {
  const int decimals = options.is_cpu ? 4 : 0;
  std::string text;
  for (const DistSide side : kDistSides) {
    const DistSideFigures& figures = cell.sides[static_cast<std::size_t>(side)];
    if (!figures.is_there) continue;
    text += text.empty() ? "  " : ", ";
    text += dist_side_name(side) + std::string(" ");
    if (side == DistSide::Alone) {
      text += by_pass(options, figures, [&](const DistPassFigures& pass) {
        return decimal(pass.flops_per_second / kTera, decimals);
      });
      text += " TFLOP/s";
    } else {
      text += by_pass(options, figures,
                      [](const DistPassFigures& pass) { return decimal(pass.share, 3); });
    }
  }
  return text;
}

std::string to_table(const DistBenchOptions& options, const DistReport& report) {
  std::vector<TableLine> lines = {{"mask", "side", "pass", "ranks", "tokens", "TFLOP/s", "of alone",
                                   "ms", "exposed ms", "sent", "memory"}};
  for (const DistCell& cell : report.cells) {
    for (const DistSide side : kDistSides) {
      if (!cell.sides[static_cast<std::size_t>(side)].is_there) continue;
      for (std::size_t pass = 0; pass < kDistPasses.size(); ++pass) {
        if (options.times_pass[pass]) lines.push_back(line_of(options, cell, side, pass));
      }
    }
  }
  std::string head = std::string(type_name(options)) + ", heads " +
                     std::to_string(options.heads_q) + ":" + std::to_string(options.heads_kv) +
                     ", head dim " + std::to_string(options.head_dim) + ", " + report.device;
  if (!report.cells.empty()) {
    head += ", default over " + std::string(transport_name(report.cells.back().transport));
  }
  return head + "; figures of a rank, the slowest or largest\n" + text_table(lines, 3);
}

std::string to_json(const DistBenchOptions& options, const DistReport& report) {
  nlohmann::ordered_json cells = nlohmann::ordered_json::array();
  for (const DistCell& cell : report.cells) cells.push_back(cell_json(options, cell));
  const nlohmann::ordered_json json = {
      {"device", report.device},      {"dtype", type_name(options)},  {"heads_q", options.heads_q},
      {"heads_kv", options.heads_kv}, {"head_dim", options.head_dim}, {"cells", cells}};
  return json.dump(1) + "\n";
}

}  // namespace magi::cli
