// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "bench/kernel_bench.hpp"
#include "common/text_table.hpp"
#include "draw/numbers.hpp"

namespace magi::cli {
namespace {

using draw::decimal;
using draw::grouped;

constexpr double kTera = 1e12;

TableLine cells_of(const KernelBenchRow& row) {
  const auto shown = [](const auto& value, double scale, int decimals) {
    return value ? decimal(static_cast<double>(*value) * scale, decimals) : std::string("-");
  };
  return {row.mask,
          pass_name(row.pass),
          grouped(row.rows),
          grouped(row.num_slices),
          draw::seconds_text(row.seconds),
          decimal(row.flops_per_second / kTera, 1),
          row.gemm_share ? draw::percent_text(*row.gemm_share, 1.0) : "-",
          shown(row.gemm_flops_per_second, 1.0 / kTera, 1),
          std::to_string(row.packed_heads),
          shown(row.sm_clock_mhz, 1.0, 0),
          shown(row.power_watts, 1.0, 0)};
}

template <typename Value>
nlohmann::ordered_json optional_json(const std::optional<Value>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

std::string dims_of(const KernelBenchOptions& options) {
  const std::string dim = std::to_string(options.head_dim);
  return options.dim_v() == options.head_dim ? dim : dim + ":" + std::to_string(options.dim_v());
}

}  // namespace

const char* pass_name(KernelPass pass) {
  return pass == KernelPass::Forward ? "forward" : "backward";
}

std::string to_table(const KernelBenchOptions& options, const KernelBenchReport& report) {
  std::vector<TableLine> lines = {{"mask", "pass", "rows", "slices", "time", "TFLOP/s", "of GEMM",
                                   "GEMM TFLOP/s", "heads/tile", "SM MHz", "watts"}};
  for (const KernelBenchRow& row : report.rows) lines.push_back(cells_of(row));
  return "bfloat16, heads " + std::to_string(options.heads_q) + ":" +
         std::to_string(options.heads_kv) + ", head dim " + dims_of(options) + ", " + report.gpu +
         "\n" + text_table(lines, 2);
}

std::string to_json(const KernelBenchOptions& options, const KernelBenchReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const KernelBenchRow& row : report.rows) {
    rows.push_back({{"mask", row.mask},
                    {"pass", pass_name(row.pass)},
                    {"rows", row.rows},
                    {"slices", row.num_slices},
                    {"area", row.area},
                    {"seconds", row.seconds},
                    {"flops_per_second", row.flops_per_second},
                    {"gemm_share", optional_json(row.gemm_share)},
                    {"gemm_flops_per_second", optional_json(row.gemm_flops_per_second)},
                    {"packed_heads", row.packed_heads},
                    {"sm_clock_mhz", optional_json(row.sm_clock_mhz)},
                    {"power_watts", optional_json(row.power_watts)}});
  }
  const nlohmann::ordered_json json = {{"gpu", report.gpu},
                                       {"dtype", "bfloat16"},
                                       {"heads_q", options.heads_q},
                                       {"heads_kv", options.heads_kv},
                                       {"head_dim", options.head_dim},
                                       {"head_dim_v", options.dim_v()},
                                       {"rounds", options.rounds},
                                       {"rows", rows}};
  return json.dump(1) + "\n";
}

}  // namespace magi::cli
