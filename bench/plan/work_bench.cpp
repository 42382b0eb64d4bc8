// SPDX-License-Identifier: Apache-2.0
// Plans in which queries travel or heads are shared out, and plans that keep rows in order, beside
// plans of keys alone: bytes, balance, predicted time and time to plan.
// work_bench [--out FILE] [--draws FILE] [--choice]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"
#include "plan/cost/even_step.hpp"
#include "plan/place_rows.hpp"
#include "plan/travel/queries.hpp"

namespace {

using magi::Mask;
using magi::PlacementAlgorithm;
using magi::Plan;
using magi::PlanConfig;
using magi::WorkMode;

constexpr double kMost = std::numeric_limits<double>::max();

Mask packed_causal(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> ends = {0};
  for (const std::int32_t length : lengths) ends.push_back(ends.back() + length);
  return magi::mask_from_cu_seqlens(ends, ends, {.is_causal = true});
}

std::vector<Mask> masks_of(const nlohmann::json& draws) {
  std::vector<Mask> masks;
  for (const auto& draw : draws) masks.push_back(packed_causal(draw));
  return masks;
}

struct Heads {
  std::int32_t q = 32;
  std::int32_t kv = 32;
};

PlanConfig config_of(std::int32_t num_ranks, Heads heads, WorkMode work) {
  PlanConfig config{.num_ranks = num_ranks, .num_heads_q = heads.q, .num_heads_kv = heads.kv};
  config.placement.chunk_size = 512;
  config.overlap_degree.reset();
  config.work = work;
  return config;
}

PlanConfig in_order(PlanConfig config) {
  config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
  return config;
}

Mask full_document(std::int32_t rows) {
  const std::vector<std::int32_t> ends = {0, rows};
  return magi::mask_from_cu_seqlens(ends, ends, {});
}

/// What a forward and a backward move between ranks.
double bytes_of(const Plan& plan) {
  const magi::planner::RowCosts costs = magi::planner::row_costs(magi::flat_plan(plan).config);
  double bytes = 0.0;
  for (const magi::Transfer& t : plan.transfers) {
    if (t.src == t.dst) continue;
    const std::int64_t row = t.space == magi::Space::Keys ? costs.k : costs.q;
    bytes += static_cast<double>(row * t.num_rows);
  }
  return bytes;
}

double seconds_of(const Plan& plan) {
  return plan.report.forward_seconds + plan.report.backward_seconds;
}

/// A plan that the checker finds sound.
Plan sound_plan(const Mask& mask, const PlanConfig& config) {
  Plan plan = magi::make_plan(mask, config);
  const auto problems = magi::check_plan(plan);
  if (!problems.empty()) throw std::runtime_error("a plan is refused: " + problems.front());
  return plan;
}

/// The least bytes and the least predicted time of plans that move keys alone, over the placements
/// `auto` and `thorough` and the overlap degrees 0 to 8.
struct BestOfKeys {
  double bytes = kMost;
  double seconds = kMost;
};

BestOfKeys best_of_keys(const Mask& mask, PlanConfig config) {
  BestOfKeys best;
  config.work = WorkMode::Keys;
  for (const auto algorithm : {PlacementAlgorithm::Auto, PlacementAlgorithm::Thorough}) {
    config.placement.algorithm = algorithm;
    for (std::int32_t degree = 0; degree <= 8; ++degree) {
      config.overlap_degree = degree;
      const Plan plan = magi::make_plan(mask, config);
      best.bytes = std::min(best.bytes, bytes_of(plan));
      best.seconds = std::min(best.seconds, seconds_of(plan));
    }
  }
  return best;
}

/// Keys alone in the best degree, over rows placed for the step's time, as `auto` places them.
double seconds_of_placed_keys(const Mask& mask, PlanConfig config) {
  config.work = WorkMode::Keys;
  const magi::Placement start = magi::place(mask, config.num_ranks, config.placement);
  const magi::Placement rows = magi::planner::place_for_step(mask, config, start);
  double best = kMost;
  for (std::int32_t degree = 0; degree <= 8; ++degree) {
    config.overlap_degree = degree;
    best = std::min(best, seconds_of(magi::make_plan_on(mask, config, rows, rows)));
  }
  return best;
}

/// Whether a plan moves anything but keys.
bool is_moving_more(const Plan& plan) {
  return std::ranges::any_of(plan.transfers, [](const magi::Transfer& t) {
    return t.space == magi::Space::Queries && t.src != t.dst;
  });
}

/// Least wall time of several calls. [ms]
template <typename Call>
double least_of(int repeats, Call&& call) {
  using Clock = std::chrono::steady_clock;
  double least = kMost;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    const auto made = call();
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    if (made.num_ranks != 0) least = std::min(least, took.count());
  }
  return least;
}

/// Of several plans.
double least_ms(const Mask& mask, const PlanConfig& config, int repeats) {
  return least_of(repeats, [&] { return magi::make_plan(mask, config).config; });
}

class Report {
 public:
  void add(const std::string& name, double value, const char* unit) {
    rows_.push_back({{"name", name}, {"value", value}, {"unit", unit}});
    std::cout << name << ' ' << value << ' ' << unit << std::endl;
  }
  void write(const std::string& path) const {
    std::ofstream file(path);
    file << rows_.dump(2) << '\n';
    if (!file.good()) throw std::runtime_error("cannot write " + path);
  }

 private:
  nlohmann::json rows_ = nlohmann::json::array();
};

template <typename Value>
double mean_over(const std::vector<Mask>& masks, Value&& value) {
  double total = 0.0;
  for (const Mask& mask : masks) total += value(mask);
  return total / static_cast<double>(masks.size());
}

double worst_balance(const std::vector<Mask>& masks, const PlanConfig& config) {
  double worst = 1.0;
  for (const Mask& mask : masks) {
    worst = std::max(worst, sound_plan(mask, config).report.balance);
  }
  return worst;
}

void measure_one_document(Report& report) {
  const Mask causal = packed_causal({65536});
  const Heads mha;
  const Heads gqa{64, 8};
  const Plan queries = sound_plan(causal, config_of(8, mha, WorkMode::Queries));
  const BestOfKeys keys = best_of_keys(causal, config_of(8, mha, WorkMode::Keys));
  report.add("place.qo.causal_mha.p8.bytes", bytes_of(queries) / keys.bytes, "ratio");
  report.add("place.qo.causal_mha.p8.balance", queries.report.balance, "ratio");
  report.add("plan.qo.causal_mha.p8.ms", least_ms(causal, config_of(8, mha, WorkMode::Queries), 5),
             "ms");
  const double seconds = seconds_of(sound_plan(causal, config_of(8, gqa, WorkMode::Auto)));
  const double alone = seconds_of(sound_plan(causal, config_of(8, gqa, WorkMode::Keys)));
  report.add("place.qo.causal_gqa.p8.time", seconds / alone, "ratio");
}

/// `auto`, which shares heads out where rows are few, beside keys alone.
void measure_heads(Report& report) {
  const Heads mha;
  for (const auto& [rows, name] : {std::pair(4096, "4k"), std::pair(16384, "16k")}) {
    const Mask mask = full_document(rows);
    const Plan plan = sound_plan(mask, config_of(8, mha, WorkMode::Auto));
    const BestOfKeys keys = best_of_keys(mask, config_of(8, mha, WorkMode::Keys));
    const std::string prefix = std::string("place.heads.full") + name + "_mha.p8.";
    report.add(prefix + "time", seconds_of(plan) / keys.seconds, "ratio");
    report.add(prefix + "bytes", bytes_of(plan) / keys.bytes, "ratio");
    report.add(prefix + "shares", plan.num_head_shares, "shares");
  }
  const PlanConfig heads = config_of(8, mha, WorkMode::Heads);
  report.add("plan.heads.full4k_mha.p8.ms", least_ms(full_document(4096), heads, 20), "ms");
}

/// The predicted step of `auto` over the best of keys alone, and what part of it is what.
void measure_times(const std::vector<Mask>& masks, const PlanConfig& config,
                   const std::string& suffix, Report& report) {
  double time = 0.0, placed = 0.0, bound = 0.0, moving = 0.0;
  for (const Mask& mask : masks) {
    const Plan plan = sound_plan(mask, config);
    const double keys = best_of_keys(mask, config).seconds;
    time += seconds_of(plan) / keys;
    placed += seconds_of_placed_keys(mask, config) / keys;
    bound += magi::planner::even_step_seconds(mask, config) / keys;
    moving += is_moving_more(plan) ? 1.0 : 0.0;
  }
  const auto count = static_cast<double>(masks.size());
  report.add("place.qo.docs64k.p8.time" + suffix, time / count, "ratio");
  report.add("place.qo.docs64k.p8.time.keys" + suffix, placed / count, "ratio");
  report.add("place.qo.docs64k.p8.time.bound" + suffix, bound / count, "ratio");
  report.add("place.qo.docs64k.p8.time.moving" + suffix, moving / count, "share");
}

void measure_documents(const std::vector<Mask>& masks, Report& report) {
  for (const auto& [heads, suffix] : {std::pair(Heads{}, ""), std::pair(Heads{64, 8}, ".gqa")}) {
    const PlanConfig config = config_of(8, heads, WorkMode::Auto);
    measure_times(masks, config, suffix, report);
    PlanConfig queries = config_of(8, heads, WorkMode::Queries);
    queries.overlap_degree = 1;
    report.add(std::string("plan.qo.docs64k.p8.ms") + suffix,
               mean_over(masks, [&](const Mask& mask) { return least_ms(mask, queries, 20); }),
               "ms");
    report.add(std::string("plan.qo.docs64k.p8.auto.ms") + suffix,
               mean_over(masks, [&](const Mask& mask) { return least_ms(mask, config, 5); }), "ms");
    const PlanConfig ordered = in_order(config_of(8, heads, WorkMode::Queries));
    report.add(std::string("place.contiguous.docs64k.p8.balance") + suffix,
               worst_balance(masks, ordered), "ratio");
    const PlanConfig permuted = config_of(8, heads, WorkMode::Keys);
    report.add(std::string("place.contiguous.docs64k.p8.bytes") + suffix,
               mean_over(masks,
                         [&](const Mask& mask) {
                           return bytes_of(sound_plan(mask, ordered)) /
                                  bytes_of(sound_plan(mask, permuted));
                         }),
               "ratio");
  }
}

/// The placement for the step's time by itself: keys alone over those rows beside the placement
/// `auto`, degrees 0 to 8 in both, and how long the search takes.
void measure_placing(const std::vector<Mask>& masks, std::int32_t num_ranks,
                     const std::string& name, Report& report) {
  for (const auto& [heads, suffix] : {std::pair(Heads{}, ""), std::pair(Heads{64, 8}, ".gqa")}) {
    PlanConfig config = config_of(num_ranks, heads, WorkMode::Keys);
    double time = 0.0, ms = 0.0;
    for (const Mask& mask : masks) {
      const magi::Placement start = magi::place(mask, num_ranks, config.placement);
      ms += least_of(3, [&] { return magi::planner::place_for_step(mask, config, start); });
      double before = kMost;
      for (std::int32_t degree = 0; degree <= 8; ++degree) {
        config.overlap_degree = degree;
        before = std::min(before, seconds_of(magi::make_plan_on(mask, config, start, start)));
      }
      time += seconds_of_placed_keys(mask, config) / before;
    }
    const auto count = static_cast<double>(masks.size());
    report.add("place.step." + name + ".time" + suffix, time / count, "ratio");
    report.add("place.step." + name + ".ms" + suffix, ms / count, "ms");
  }
}

void measure_long(const std::vector<Mask>& masks, Report& report) {
  PlanConfig ordered = in_order(config_of(64, Heads{}, WorkMode::Queries));
  ordered.overlap_degree = 1;
  report.add("place.contiguous.docs1m.p64.balance", worst_balance(masks, ordered), "ratio");
  report.add("plan.contiguous.docs1m.p64.ms",
             mean_over(masks, [&](const Mask& mask) { return least_ms(mask, ordered, 2); }), "ms");
}

/// Rows [0, text) and all others see each other; a video row of frames x lines x columns sees the
/// rows that are at most one frame, three lines and three columns away.
Mask joint_video(std::int32_t frames, std::int32_t lines, std::int32_t columns, std::int32_t text) {
  const std::int32_t rows = text + frames * lines * columns;
  Mask mask{rows, rows, {}};
  mask.slices.push_back({0, text, 0, rows});
  mask.slices.push_back({text, rows, 0, text});
  const auto line_at = [&](std::int32_t frame, std::int32_t line) {
    return text + (frame * lines + line) * columns;
  };
  for (std::int32_t t = 0; t < frames; ++t) {
    for (std::int32_t y = 0; y < lines; ++y) {
      for (std::int32_t t2 = std::max(0, t - 1); t2 <= std::min(frames - 1, t + 1); ++t2) {
        for (std::int32_t y2 = std::max(0, y - 3); y2 <= std::min(lines - 1, y + 3); ++y2) {
          const std::int32_t q = line_at(t, y);
          const std::int32_t k = line_at(t2, y2);
          mask.slices.push_back({q, q + columns, k, k + columns, k - q - 3, k - q + 3});
        }
      }
    }
  }
  return mask;
}

/// A window of `reach` rows on both sides, and leading rows that see all and that all see.
Mask window_with_global(std::int32_t rows, std::int32_t reach, std::int32_t num_global) {
  Mask mask{rows, rows, {}};
  mask.slices.push_back({0, num_global, 0, rows});
  mask.slices.push_back({num_global, rows, 0, num_global});
  mask.slices.push_back({num_global, rows, num_global, rows, -reach, reach});
  return mask;
}

/// The choice of what travels that is made unless one is asked for, beside keys alone and `auto`.
void measure_choice(const std::vector<Mask>& documents, Report& report) {
  const Mask video = joint_video(30, 60, 60, 512);
  const PlanConfig chosen = config_of(8, {24, 24}, WorkMode::Chosen);
  PlanConfig fastest = chosen;
  fastest.work = WorkMode::Auto;
  report.add("place.video.p8.time",
             seconds_of(sound_plan(video, chosen)) / seconds_of(sound_plan(video, fastest)),
             "ratio");
  std::vector<std::pair<Mask, Heads>> cases = {{video, {24, 24}},
                                               {window_with_global(65536, 2048, 512), {32, 32}},
                                               {window_with_global(65536, 2048, 512), {32, 8}},
                                               {window_with_global(131072, 2048, 128), {32, 32}},
                                               {packed_causal({65536}), {32, 32}},
                                               {packed_causal({65536}), {64, 8}},
                                               {full_document(65536), {64, 8}}};
  for (const Mask& mask : documents) {
    cases.emplace_back(mask, Heads{32, 32});
    cases.emplace_back(mask, Heads{64, 8});
  }
  double total = 0.0;
  for (const auto& [mask, heads] : cases) {
    total += seconds_of(magi::make_plan(mask, config_of(8, heads, WorkMode::Chosen))) /
             seconds_of(magi::make_plan(mask, config_of(8, heads, WorkMode::Keys)));
  }
  report.add("place.default.over_keys", total / static_cast<double>(cases.size()), "ratio");
  const PlanConfig gqa = config_of(8, {64, 8}, WorkMode::Chosen);
  report.add("plan.default.docs64k.p8.ms",
             mean_over(documents, [&](const Mask& mask) { return least_ms(mask, gqa, 5); }), "ms");
  const PlanConfig mha = config_of(8, {32, 32}, WorkMode::Chosen);
  report.add("plan.default.docs64k_mha.p8.ms",
             mean_over(documents, [&](const Mask& mask) { return least_ms(mask, mha, 2); }), "ms");
}

struct Options {
  std::string draws = "bench/data/document_draws.json";
  std::string out;
  bool is_choice_alone = false;
};

void run(const Options& options) {
  std::ifstream file(options.draws);
  if (!file) throw std::runtime_error("cannot read " + options.draws);
  const nlohmann::json draws = nlohmann::json::parse(file).at("draws");
  Report report;
  measure_choice(masks_of(draws.at("65536")), report);
  if (!options.is_choice_alone) {
    measure_one_document(report);
    measure_heads(report);
    measure_documents(masks_of(draws.at("65536")), report);
    measure_long(masks_of(draws.at("1048576")), report);
    measure_placing(masks_of(draws.at("65536")), 8, "docs64k.p8", report);
    measure_placing(masks_of(draws.at("1048576")), 64, "docs1m.p64", report);
  }
  if (!options.out.empty()) report.write(options.out);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Plans in which queries travel or rows stay in order."};
  app.add_option("--draws", options.draws, "document_draws.json")->capture_default_str();
  app.add_flag("--choice", options.is_choice_alone, "what travels by default, alone");
  app.add_option("--out", options.out, "JSON rows {name, value, unit} go here");
  try {
    app.parse(argc, argv);
    run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "work_bench: " << error.what() << '\n';
    return 3;
  }
  return 0;
}
