// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>
#include <vector>

#include "magi/plan.hpp"
#include "plan/check_pairs.hpp"
#include "plan/check_structure.hpp"

namespace magi {
namespace {

using namespace planner;

/// Waves that read one segment must share its slices and tile the kv heads; segments must split the
/// slices between them, and carry the first wave that reads them.
void check_wave_order(const Plan& plan, std::size_t rank, Problems& problems) {
  const RankPlan& own = plan.ranks[rank];
  std::map<std::int32_t, std::vector<std::size_t>> readers;
  for (std::size_t w = 0; w < own.waves.size(); ++w) {
    readers[own.waves[w].k_segment].push_back(w);
  }
  std::int64_t num_read = 0;
  for (const auto& [segment, waves] : readers) {
    const Wave& first = own.waves[waves.front()];
    num_read += first.slices.size();
    std::int32_t head = 0;
    for (const std::size_t w : waves) {
      const Wave& wave = own.waves[w];
      if (wave.slices != first.slices || wave.heads.begin != head) {
        problems.add("rank ", rank, ": wave ", w, " does not continue the waves on segment ",
                     segment);
      }
      head = wave.heads.end;
    }
    if (head != plan.config.num_heads_kv) {
      problems.add("rank ", rank, ": the waves on segment ", segment, " end at head ", head);
    }
    const std::int32_t ready = own.k.segments[static_cast<std::size_t>(segment)].wave;
    if (ready != static_cast<std::int32_t>(waves.front())) {
      problems.add("rank ", rank, ": segment ", segment, " is for wave ", ready,
                   ", its first reader is wave ", waves.front());
    }
  }
  for (std::size_t s = 1; s < own.k.segments.size(); ++s) {
    const bool is_read = readers.count(static_cast<std::int32_t>(s)) > 0;
    if (!is_read && own.k.segments[s].num_rows > 0) {
      problems.add("rank ", rank, ": no wave reads key segment ", s);
    }
  }
  if (num_read != static_cast<std::int64_t>(own.slices.size())) {
    problems.add("rank ", rank, ": segments share slices");
  }
}

/// The waves of one segment run in ascending order inside it.
void check_slice_order(const Plan& plan, std::size_t rank, Problems& problems) {
  const RankPlan& own = plan.ranks[rank];
  for (const Wave& wave : own.waves) {
    for (std::int32_t s = wave.slices.begin + 1; s < wave.slices.end; ++s) {
      const BandSlice& a = own.slices[static_cast<std::size_t>(s) - 1];
      const BandSlice& b = own.slices[static_cast<std::size_t>(s)];
      if (a.q0 > b.q0 || (a.q0 == b.q0 && a.k0 > b.k0)) {
        problems.add("rank ", rank, ": slices ", s - 1, " and ", s, " are out of order");
        return;
      }
    }
  }
}

/// Sums and products modulo 2^64: a broken plan may hold any numbers.
std::int64_t sum(const std::vector<std::int64_t>& values) {
  std::uint64_t total = 0;
  for (const std::int64_t value : values) total += static_cast<std::uint64_t>(value);
  return static_cast<std::int64_t>(total);
}
std::int64_t product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

std::vector<std::int64_t> areas_of_ranks(const Plan& plan) {
  std::vector<std::int64_t> areas;
  for (const RankPlan& rank : plan.ranks) {
    std::uint64_t pairs = 0;
    for (const BandSlice& slice : rank.slices) pairs += static_cast<std::uint64_t>(area(slice));
    areas.push_back(static_cast<std::int64_t>(pairs));
  }
  return areas;
}

void check_figures(const Plan& plan, Problems& problems) {
  const PlanReport& report = plan.report;
  const std::size_t num_ranks = plan.ranks.size();
  const std::vector<std::int64_t> areas = areas_of_ranks(plan);
  if (areas != report.rank_area) problems.add("the report's areas are not those of the slices");
  const std::int64_t total = sum(areas);
  if (total != area(plan.mask)) {
    problems.add("ranks attend ", total, " pairs, the mask has ", area(plan.mask));
  }
  const std::int64_t row_bytes = std::int64_t{plan.config.num_heads_kv} *
                                 plan.config.element_bytes *
                                 (plan.config.head_dim_qk + plan.config.head_dim_v);
  std::vector<std::int64_t> pair_rows(num_ranks * num_ranks, 0);
  std::vector<std::int64_t> rows(num_ranks, 0);
  for (const Transfer& t : plan.transfers) {
    const auto dst = static_cast<std::size_t>(t.dst);
    pair_rows[static_cast<std::size_t>(t.src) * num_ranks + dst] += t.num_rows;
    rows[dst] += t.num_rows;
  }
  std::vector<std::int64_t> bytes;
  for (const std::int64_t count : pair_rows) bytes.push_back(product(count, row_bytes));
  if (bytes != report.pair_bytes) {
    problems.add("the report's bytes per pair are not those of the transfers");
  }
  if (rows != report.remote_rows) {
    problems.add("the report's received rows are not those of the transfers");
  }
  const std::int64_t all_bytes = sum(bytes);
  if (report.total_bytes != all_bytes) {
    problems.add("the report counts ", report.total_bytes, " bytes, the transfers ", all_bytes);
  }
  if (report.lower_bound_bytes > all_bytes || report.lower_bound_bytes < 0) {
    problems.add("the lower bound, ", report.lower_bound_bytes, " bytes, is above ", all_bytes,
                 " bytes that suffice");
  }
}

}  // namespace

std::vector<std::string> check_plan(const Plan& plan) {
  std::vector<std::string> broken = check_structure(plan);
  if (!broken.empty()) return broken;
  Problems problems;
  if (plan_digest(plan) != plan.digest) problems.add("the digest is not that of the tables");
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    check_wave_order(plan, r, problems);
    check_slice_order(plan, r, problems);
  }
  check_figures(plan, problems);
  check_received(plan, problems);
  check_pairs(plan, problems);
  return problems.take();
}

}  // namespace magi
