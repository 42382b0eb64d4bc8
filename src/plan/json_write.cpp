// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "magi/plan.hpp"
#include "plan/json_keys.hpp"

namespace magi {
namespace {

using namespace planner;

/// Appends JSON text; one record per line in long lists, so that files compare well.
class Writer {
 public:
  std::string text;

  template <typename Number>
  void number(Number value) {
    // 40 characters hold the shortest exact form of any number.
    std::array<char, 40> digits;
    const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    text.append(digits.data(), result.ptr);
  }
  void string(std::string_view value) {
    text += '"';
    text += value;
    text += '"';
  }
  /// {"keys[i]": write(i), ...}
  template <typename Write>
  void object(std::span<const std::string_view> keys, std::string_view separator, Write&& write) {
    text += '{';
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i > 0) text += separator;
      string(keys[i]);
      text += ": ";
      write(i);
    }
    text += '}';
  }
  template <typename List, typename Write>
  void list(const List& values, std::string_view separator, Write&& write) {
    text += '[';
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text += separator;
      write(values[i]);
    }
    text += ']';
  }
  template <typename List>
  void numbers(const List& values) {
    list(values, ",", [this](const auto value) { this->number(value); });
  }
  void record(std::initializer_list<std::int32_t> values) {
    numbers(std::span(values.begin(), values.size()));
  }
};

void write_slices(Writer& out, const std::vector<BandSlice>& slices) {
  out.list(slices, ",\n", [&](const BandSlice& s) {
    out.record({s.q0, s.q1, s.k0, s.k1});
    out.text.back() = ',';
    s.d_min == -kBandInfinity ? void(out.text += "null") : out.number(s.d_min);
    out.text += ',';
    s.d_max == kBandInfinity ? void(out.text += "null") : out.number(s.d_max);
    out.text += ']';
  });
}

void write_mask(Writer& out, const Mask& mask) {
  out.object(kMaskKeys, ", ", [&](std::size_t i) {
    switch (i) {
      case 0:
        return out.number(mask.rows_q);
      case 1:
        return out.number(mask.rows_k);
      default:
        return write_slices(out, mask.slices);
    }
  });
}

void write_placement_config(Writer& out, const PlacementConfig& config) {
  out.object(kPlacementConfigKeys, ",\n", [&](std::size_t i) {
    switch (i) {
      case 0:
        return out.string(placement_name(config.algorithm));
      case 1:
        return config.chunk_size ? out.number(*config.chunk_size) : void(out.text += "null");
      case 2:
        return out.number(config.min_chunks_per_rank);
      case 3:
        return void(out.text += config.uneven_shard ? "true" : "false");
      case 4:
        return out.number(config.token_tolerance);
      case 5:
        return out.number(config.top_p);
      case 6:
        return out.number(config.num_select_chunks);
      case 7:
        return out.number(config.allocation_ratio);
      default:
        return out.number(config.seed);
    }
  });
}

void write_cost(Writer& out, const CostModel& cost) {
  const std::array<double, kCostKeys.size()> values = {
      cost.flops_per_second, cost.backward_flops_per_second, cost.bytes_per_second,
      cost.seconds_per_transfer, cost.seconds_per_launch};
  out.object(kCostKeys, ",\n", [&](std::size_t i) { out.number(values[i]); });
}

void write_config(Writer& out, const PlanConfig& config) {
  const std::array<std::int32_t, 6> sizes = {config.num_ranks,    config.num_heads_q,
                                             config.num_heads_kv, config.head_dim_qk,
                                             config.head_dim_v,   config.element_bytes};
  const auto null = [&] { out.text += "null"; };
  out.object(kConfigKeys, ",\n", [&](std::size_t i) {
    if (i < sizes.size()) return out.number(sizes[i]);
    switch (i) {
      case 6:
        return write_placement_config(out, config.placement);
      case 7:
        return config.placement_k ? write_placement_config(out, *config.placement_k) : null();
      case 8:
        return config.overlap_degree ? out.number(*config.overlap_degree) : null();
      case 9:
        return out.string(kWaveModeNames.at(static_cast<std::size_t>(config.wave_mode)));
      case 10:
        return out.number(config.min_wave_rows);
      default:
        return write_cost(out, config.cost);
    }
  });
}

void write_placement(Writer& out, const Placement& placement) {
  const std::array<std::int32_t, 3> sizes = {placement.num_rows, placement.chunk_size,
                                             placement.num_ranks};
  out.object(kPlacementKeys, ", ", [&](std::size_t i) {
    i < sizes.size() ? out.number(sizes[i]) : out.numbers(placement.chunk_rank);
  });
}

void write_space(Writer& out, const TokenSpace& space) {
  out.list(space.segments, ",", [&](const Segment& s) {
    out.record({s.owner, s.num_rows, s.wave});
  });
}

void write_rank(Writer& out, const RankPlan& rank) {
  out.object(kRankKeys, ",\n", [&](std::size_t i) {
    switch (i) {
      case 0:
        return write_space(out, rank.q);
      case 1:
        return write_space(out, rank.k);
      case 2:
        return write_slices(out, rank.slices);
      default:
        return out.list(rank.waves, ",", [&](const Wave& w) {
          out.record({w.k_segment, w.heads.begin, w.heads.end, w.slices.begin, w.slices.end});
        });
    }
  });
}

void write_report(Writer& out, const PlanReport& report) {
  const std::array<const std::vector<std::int64_t>*, 4> lists = {
      &report.rank_area, &report.rank_rows, &report.remote_rows, &report.pair_bytes};
  const std::array<std::int64_t, 3> bytes = {report.total_bytes, report.lower_bound_bytes,
                                             report.ring_bytes};
  const std::array<double, 3> seconds = {report.forward_seconds, report.backward_seconds,
                                         report.exposed_comm_seconds};
  out.object(kReportKeys, ",\n", [&](std::size_t i) {
    if (i < 4) return out.numbers(*lists[i]);
    if (i == 4) return out.number(report.balance);
    return i < 8 ? out.number(bytes[i - 5]) : out.number(seconds[i - 8]);
  });
}

void write_transfers(Writer& out, const std::vector<Transfer>& transfers) {
  out.list(transfers, ",\n", [&](const Transfer& t) {
    out.record({t.src, t.dst, t.src_row, t.dst_segment, t.dst_row, t.num_rows});
  });
}

/// 16 hexadecimal digits: JSON numbers of many readers end at 2^53.
std::string hexadecimal(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15u];
  return text;
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
  Writer out;
  out.object(kPlanKeys, ",\n", [&](std::size_t i) {
    switch (i) {
      case 0:
        return out.string(kPlanFormat);
      case 1:
        return out.number(kPlanVersion);
      case 2:
        return write_mask(out, plan.mask);
      case 3:
        return write_config(out, plan.config);
      case 4:
        return write_placement(out, plan.placement_q);
      case 5:
        return write_placement(out, plan.placement_k);
      case 6:
        return out.number(plan.num_waves);
      case 7:
        return out.list(plan.ranks, ",\n", [&](const RankPlan& rank) { write_rank(out, rank); });
      case 8:
        return write_transfers(out, plan.transfers);
      case 9:
        return write_report(out, plan.report);
      default:
        return out.string(hexadecimal(plan.digest));
    }
  });
  return out.text + "\n";
}

}  // namespace magi
