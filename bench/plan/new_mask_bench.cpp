// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/document_bench.hpp"
#include "comm/nvlink/peer_places.hpp"
#include "kernels/worklist/backward_list.hpp"
#include "kernels/worklist/forward_arrivals.hpp"
#include "kernels/worklist/forward_list.hpp"
#include "kernels/worklist/split_list.hpp"
#include "magi/plan.hpp"
#include "runtime/rank_steps.hpp"

// What the host computes for a mask that it has not seen before, part by part, one core: the plan
// for all ranks, and what one rank needs to run it on a GPU, up to its first kernel (the backward's
// list comes later). Packed causal documents of 64k tokens, 8 ranks, 64:8 heads of 128; of the
// slowest rank; median over the draws.
// new_mask_bench [--out FILE] [--draws bench/data/document_draws.json]
namespace {

using Clock = std::chrono::steady_clock;
using magi::Mask;
using magi::bench::packed_causal;

constexpr std::int32_t kRanks = 8;
constexpr std::int32_t kRepeats = 5;
constexpr std::int32_t kMultiprocessors = 132;

/// Least time of a call. [ms]
template <typename Body>
double least_ms(const Body& body) {
  double least = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = Clock::now();
    body();
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    least = std::min(least, took.count());
  }
  return least;
}

using Times = std::map<std::string, double>;

/// The keys of the rank's one attend as they come over nvlink.
magi::ComingKeys coming_keys(const magi::comm::PeerPlaces& places, std::int32_t rank) {
  magi::ComingKeys coming{.num_sources = 16, .num_sections = 2, .early_sources = 1U << rank};
  for (const auto& run : places.needed_runs) {
    coming.parts.push_back({{run.local_row, run.local_row + run.num_rows}, run.peer});
  }
  return coming;
}

Times times_of_rank(const magi::Plan& plan, std::int32_t rank) {
  Times times;
  times["steps"] = least_ms([&] { const magi::RankSteps steps(plan, rank); });
  const magi::RankSteps steps(plan, rank);
  const std::size_t segment = steps.k_segments.size() - 1;
  const auto rows = steps.everyones_rows(magi::Space::Keys, segment);
  times["places"] = least_ms(
      [&] { magi::comm::peer_places(steps.everyones_rows(magi::Space::Keys, segment), rank); });
  const auto coming = coming_keys(magi::comm::peer_places(rows, rank), rank);
  const auto& slices = steps.attends.front().slices;
  const std::int32_t rows_q = steps.rows_q, rows_k = steps.own.k.segments[segment].num_rows;
  times["forward"] = least_ms([&] {
    auto list = magi::build_forward_list(
        {.rows_q = rows_q, .rows_k = rows_k, .heads_q = 64, .heads_kv = 8}, slices, {});
    magi::split_long_tiles(list, {});
    magi::order_by_arrival(list, coming, kMultiprocessors);
  });
  times["backward"] = least_ms([&] {
    magi::BackwardProblem problem{
        .rows_q = rows_q, .rows_k = rows_k, .heads_q = 64, .heads_kv = 8, .coming = coming};
    problem.coming.is_awaited = true;
    magi::build_backward_list(problem, slices, {}, {.is_deterministic = false});
  });
  return times;
}

Times times_of(const Mask& mask) {
  magi::PlanConfig config{.num_ranks = kRanks, .num_heads_q = 64, .num_heads_kv = 8};
  config.overlap_degree = 0;
  Times times;
  times["plan"] = least_ms([&] { magi::make_plan(mask, config); });
  const magi::Plan plan = magi::make_plan(mask, config);
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    for (const auto& [name, ms] : times_of_rank(plan, rank)) {
      times[name] = std::max(times[name], ms);
    }
  }
  return times;
}

nlohmann::json run(const magi::bench::Options& options) {
  const auto draws = magi::bench::read_draws(options);
  std::map<std::string, std::vector<double>> all;
  for (const auto& lengths : draws.at("65536")) {
    double total = 0;
    for (const auto& [name, ms] : times_of(packed_causal(lengths))) {
      all[name].push_back(ms);
      if (name != "backward") total += ms;
    }
    all["until_first_kernel"].push_back(total);
  }
  nlohmann::json rows = nlohmann::json::array();
  for (auto& [name, values] : all) {
    std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
    rows.push_back({{"name", "new_mask.docs64k.p8." + name},
                    {"value", values[values.size() / 2]},
                    {"unit", "ms"}});
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  return magi::bench::run_bench("new_mask_bench", argc, argv, run);
}
