// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "magi/plan.hpp"
#include "plan/check_structure.hpp"
#include "plan/config.hpp"
#include "plan/json_keys.hpp"
#include "plan/json_scanner.hpp"

namespace magi {
namespace {

using namespace planner;

constexpr std::int32_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

std::int32_t read_diagonal(JsonScanner& in, std::int32_t unbounded) {
  return in.null() ? unbounded : in.integer32(-kBandInfinity, kBandInfinity);
}

BandSlice read_slice(JsonScanner& in) {
  BandSlice slice;
  const std::array<std::int32_t*, 4> rows = {&slice.q0, &slice.q1, &slice.k0, &slice.k1};
  const std::size_t size = in.array([&](std::size_t i) {
    if (i < 4) {
      *rows[i] = in.integer32(0, kMaxRows);
    } else if (i == 4) {
      slice.d_min = read_diagonal(in, -kBandInfinity);
    } else if (i == 5) {
      slice.d_max = read_diagonal(in, kBandInfinity);
    } else {
      in.refuse("one too many", "[q0, q1, k0, k1, d_min, d_max]");
    }
  });
  if (size != 6) in.refuse("too short", "[q0, q1, k0, k1, d_min, d_max]");
  return slice;
}

std::vector<BandSlice> read_slices(JsonScanner& in) {
  std::vector<BandSlice> slices;
  in.array([&](std::size_t) { slices.push_back(read_slice(in)); });
  return slices;
}

Mask read_mask(JsonScanner& in) {
  Mask mask;
  in.object(kMaskKeys, [&](std::size_t i) {
    switch (i) {
      case 0:
        mask.rows_q = in.integer32(1, kMaxRows);
        break;
      case 1:
        mask.rows_k = in.integer32(1, kMaxRows);
        break;
      default:
        mask.slices = read_slices(in);
    }
  });
  return mask;
}

PlacementConfig read_placement_config(JsonScanner& in) {
  PlacementConfig config;
  in.object(kPlacementConfigKeys, [&](std::size_t i) {
    switch (i) {
      case 0:
        config.algorithm = placement_from_name(in.string());
        break;
      case 1:
        if (!in.null()) config.chunk_size = in.integer32(1, kMaxRows);
        break;
      case 2:
        config.min_chunks_per_rank = in.integer32(1, kMaxRows);
        break;
      case 3:
        config.uneven_shard = in.boolean();
        break;
      case 4:
        config.token_tolerance = in.number();
        break;
      case 5:
        config.top_p = in.number();
        break;
      case 6:
        config.num_select_chunks = in.integer32(1, kMaxRows);
        break;
      case 7:
        config.allocation_ratio = in.number();
        break;
      default:
        config.seed = in.unsigned_integer();
    }
  });
  return config;
}

CostModel read_cost(JsonScanner& in) {
  CostModel cost;
  const std::array<double*, kCostKeys.size()> values = {
      &cost.flops_per_second, &cost.backward_flops_per_second, &cost.bytes_per_second,
      &cost.seconds_per_transfer, &cost.seconds_per_launch};
  in.object(kCostKeys, [&](std::size_t i) { *values[i] = in.number(); });
  return cost;
}

WaveMode read_wave_mode(JsonScanner& in) {
  const std::string_view name = in.string();
  const auto found = std::find(kWaveModeNames.begin(), kWaveModeNames.end(), name);
  if (found == kWaveModeNames.end()) in.refuse(name, "auto, heads, rows");
  return static_cast<WaveMode>(found - kWaveModeNames.begin());
}

PlanConfig read_config(JsonScanner& in) {
  PlanConfig config;
  const std::array<std::int32_t*, 6> sizes = {&config.num_ranks,    &config.num_heads_q,
                                              &config.num_heads_kv, &config.head_dim_qk,
                                              &config.head_dim_v,   &config.element_bytes};
  in.object(kConfigKeys, [&](std::size_t i) {
    if (i < sizes.size()) {
      *sizes[i] = in.integer32(1, kMaxInt);
      return;
    }
    switch (i) {
      case 6:
        config.placement = read_placement_config(in);
        break;
      case 7:
        if (!in.null()) config.placement_k = read_placement_config(in);
        break;
      case 8:
        config.overlap_degree =
            in.null() ? std::nullopt : std::optional(in.integer32(0, kMaxDegree));
        break;
      case 9:
        config.wave_mode = read_wave_mode(in);
        break;
      case 10:
        config.min_wave_rows = in.integer32(1, kMaxRows);
        break;
      default:
        config.cost = read_cost(in);
    }
  });
  return config;
}

Placement read_placement(JsonScanner& in) {
  std::array<std::int32_t, 3> sizes{};
  std::vector<std::int32_t> chunk_rank;
  in.object(kPlacementKeys, [&](std::size_t i) {
    if (i < 2) sizes[i] = in.integer32(1, kMaxRows);
    if (i == 2) sizes[i] = in.integer32(1, kMaxRanks);
    if (i == 3) {
      in.array([&](std::size_t) { chunk_rank.push_back(in.integer32(0, kMaxRanks - 1)); });
    }
  });
  return placement_from_chunks(sizes[0], sizes[1], sizes[2], std::move(chunk_rank));
}

TokenSpace read_space(JsonScanner& in) {
  TokenSpace space;
  in.array([&](std::size_t) {
    std::array<std::int32_t, 3> v{};
    in.integers(v, kManyOwners, kMaxRows);
    space.segments.push_back({v[0], v[1], v[2]});
  });
  return space;
}

RankPlan read_rank(JsonScanner& in) {
  RankPlan rank;
  in.object(kRankKeys, [&](std::size_t i) {
    switch (i) {
      case 0:
        rank.q = read_space(in);
        break;
      case 1:
        rank.k = read_space(in);
        break;
      case 2:
        rank.slices = read_slices(in);
        break;
      default:
        in.array([&](std::size_t) {
          std::array<std::int32_t, 5> v{};
          in.integers(v, 0, kMaxInt);
          rank.waves.push_back({v[0], {v[1], v[2]}, {v[3], v[4]}});
        });
    }
  });
  return rank;
}

std::vector<Transfer> read_transfers(JsonScanner& in) {
  std::vector<Transfer> transfers;
  in.array([&](std::size_t) {
    std::array<std::int32_t, 6> v{};
    in.integers(v, 0, kMaxRows);
    transfers.push_back({v[0], v[1], v[2], v[3], v[4], v[5]});
  });
  return transfers;
}

PlanReport read_report(JsonScanner& in) {
  PlanReport report;
  const std::array<std::vector<std::int64_t>*, 4> lists = {&report.rank_area, &report.rank_rows,
                                                           &report.remote_rows, &report.pair_bytes};
  const std::array<std::int64_t*, 3> bytes = {&report.total_bytes, &report.lower_bound_bytes,
                                              &report.ring_bytes};
  const std::array<double*, 3> seconds = {&report.forward_seconds, &report.backward_seconds,
                                          &report.exposed_comm_seconds};
  in.object(kReportKeys, [&](std::size_t i) {
    if (i < 4) {
      in.array([&](std::size_t) { lists[i]->push_back(in.integer(0, kMaxInt64)); });
    } else if (i == 4) {
      report.balance = in.number();
    } else if (i < 8) {
      *bytes[i - 5] = in.integer(0, kMaxInt64);
    } else {
      *seconds[i - 8] = in.number();
    }
  });
  return report;
}

std::uint64_t read_digest(JsonScanner& in) {
  const std::string_view digits = in.string();
  std::uint64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() != 16 || result.ec != std::errc{} || result.ptr != end) {
    in.refuse(digits, "16 hexadecimal digits");
  }
  return value;
}

Plan read_plan(JsonScanner& in) {
  Plan plan;
  in.object(kPlanKeys, [&](std::size_t i) {
    switch (i) {
      case 0:
        if (const auto format = in.string(); format != kPlanFormat) in.refuse(format, kPlanFormat);
        break;
      case 1:
        in.integer32(kPlanVersion, kPlanVersion);
        break;
      case 2:
        plan.mask = read_mask(in);
        break;
      case 3:
        plan.config = read_config(in);
        break;
      case 4:
        plan.placement_q = read_placement(in);
        break;
      case 5:
        plan.placement_k = read_placement(in);
        break;
      case 6:
        plan.num_waves = in.integer32(1, kMaxDegree + 1);
        break;
      case 7:
        in.array([&](std::size_t) { plan.ranks.push_back(read_rank(in)); });
        break;
      case 8:
        plan.transfers = read_transfers(in);
        break;
      case 9:
        plan.report = read_report(in);
        break;
      default:
        plan.digest = read_digest(in);
    }
  });
  in.finish();
  return plan;
}

}  // namespace

Plan plan_from_json(std::string_view text) {
  JsonScanner in(text, "plan JSON");
  Plan plan = read_plan(in);
  const std::vector<std::string> problems = check_structure(plan);
  if (!problems.empty()) {
    throw InvalidArgument("plan JSON: " + problems.front() +
                          "; allowed: the parts of one plan, which agree");
  }
  if (plan_digest(plan) != plan.digest) {
    in.refuse("carrying the digest of another plan", "the digest of its own tables");
  }
  return plan;
}

}  // namespace magi
