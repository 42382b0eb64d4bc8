// SPDX-License-Identifier: Apache-2.0
#include "doctor/calibrate.hpp"

#include <algorithm>
#include <charconv>

#include "doctor/attention_rates.hpp"
#include "doctor/row_rates.hpp"
#include "magi/runtime.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kCpuRanks = 2;
constexpr std::int32_t kGpuRows = 16384;
constexpr std::int32_t kCpuRows = 2048;

/// Three digits: more would say that the next run gives the same.
double rounded(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific, 2);
  double result = value;
  std::from_chars(text, end.ptr, result);
  return result;
}

/// The constants of one rank while all others measure theirs; the slowest rank's on all of them.
CostModel measure(Communicator& group, const RankPlace& place, std::int32_t rows) {
  const AttentionRates attention = attention_rates(place);
  const double memory = memory_rate(place, rows);
  const ExchangeRates exchange = exchange_rates(group, place, rows);
  const auto least = [&](double rate) { return rounded(least_of_ranks(group, rate)); };
  const auto most = [&](double delay) {
    return std::min(rounded(-least_of_ranks(group, -delay)), 1.0);
  };
  return {.flops_per_second = least(attention.flops_per_second),
          .backward_flops_per_second = least(attention.backward_flops_per_second),
          .bytes_per_second = least(exchange.bytes_per_second),
          .memory_bytes_per_second = least(memory),
          .seconds_per_transfer = most(exchange.seconds_per_transfer),
          .seconds_per_launch = most(attention.seconds_per_launch)};
}

/// Only what a cost file may hold.
std::string plain(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '?';
  }
  return text;
}

}  // namespace

CostFile calibrate(const GpuMachine& machine,
                   const std::function<void(const std::string&)>& report) {
  CostFile file;
  const auto num_gpus = static_cast<std::int32_t>(machine.gpus.size());
  const bool has_group =
      num_gpus >= 2 &&
      std::ranges::none_of(machine.gpus, [](const GpuFacts& gpu) { return gpu.backend.empty(); });
  if (has_group) {
    report("measuring on " + std::to_string(num_gpus) + " GPUs at once");
    const std::string transport =
        run_gpu_ranks(num_gpus, [&](Communicator& group, const RankPlace& place) {
          const CostModel cost = measure(group, place, kGpuRows);
          if (group.rank() == 0) file.cost = cost;
        });
    file.machine = std::to_string(num_gpus) + " x " + plain(machine.gpus[0].name) + " over " +
                   transport + ", attention of backend " + plain(machine.gpus[0].backend);
    return file;
  }
  report("there are no two GPUs with kernels, so the CPU is measured");
  run_ranks(kCpuRanks, [&](Communicator& group) {
    const CostModel cost = measure(group, host_place(), kCpuRows);
    if (group.rank() == 0) file.cost = cost;
  });
  file.machine = "CPU alone: " + std::to_string(kCpuRanks) +
                 " ranks as threads, attention in float32, rows through the rings of shm";
  return file;
}

}  // namespace magi::cli
