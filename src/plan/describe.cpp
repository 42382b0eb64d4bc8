// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>
#include <string>

#include "magi/plan.hpp"

namespace magi {
namespace {

/// Ranks listed one by one; larger plans show the extremes only.
constexpr std::size_t kMaxListedRanks = 16;

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  return fixed(value, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

std::string seconds_text(double seconds) {
  if (seconds >= 1.0) return fixed(seconds, 2) + " s";
  if (seconds >= 1e-3) return fixed(seconds * 1e3, 2) + " ms";
  return fixed(seconds * 1e6, 1) + " us";
}

std::string share_text(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return "none";
  return fixed(100.0 * static_cast<double>(part) / static_cast<double>(whole), 1) + " %";
}

void describe_mask(std::ostringstream& out, const Plan& plan) {
  const std::int64_t pairs = area(plan.mask);
  const std::int64_t all = std::int64_t{plan.mask.rows_q} * plan.mask.rows_k;
  out << "mask       " << plan.mask.rows_q << " x " << plan.mask.rows_k << " rows, "
      << plan.mask.slices.size() << " slices, " << pairs << " pairs (" << share_text(pairs, all)
      << " of all)\n";
  out << "heads      " << plan.config.num_heads_q << " query, " << plan.config.num_heads_kv
      << " key-value, dim " << plan.config.head_dim_qk << " / " << plan.config.head_dim_v << ", "
      << plan.config.element_bytes << " bytes an element\n";
}

void describe_placement(std::ostringstream& out, const Plan& plan) {
  const Placement& q = plan.placement_q;
  out << "placement  " << placement_name(plan.config.placement.algorithm) << ", " << q.num_chunks()
      << " chunks of " << q.chunk_size << " rows on " << q.num_ranks << " ranks, "
      << q.num_rows - plan.mask.rows_q << " rows of padding\n";
  if (plan.placement_k != q) {
    const Placement& k = plan.placement_k;
    out << "keys       " << k.num_chunks() << " chunks of " << k.chunk_size << " rows, "
        << k.num_rows - plan.mask.rows_k << " rows of padding\n";
  }
  out << "balance    " << fixed(plan.report.balance, 4) << " (largest area / mean)\n";
}

/// What a plan receives when, in words.
std::string stages_text(const Plan& plan) {
  const std::int32_t num_remote = num_stages(plan) - 1;
  if (plan.exchanges.empty()) return "own keys only, nothing is received";
  if (num_remote == 0) return "one: everything is fetched first";
  std::string text = "own keys, then " + std::to_string(num_remote) +
                     (num_remote == 1 ? " stage" : " stages") + " of received keys";
  const bool is_by_heads = plan.exchanges.front().heads.size() < plan.config.num_heads_kv;
  if (num_remote > 1) text += is_by_heads ? " by heads" : " by rows";
  const std::size_t num_q = plan.ranks.front().q.segments.size();
  if (num_q > 1) {
    text += ", with " + std::to_string(num_q - 1) + (num_q == 2 ? " segment" : " segments") +
            " of received queries";
  }
  return text;
}

void describe_traffic(std::ostringstream& out, const Plan& plan) {
  const PlanReport& report = plan.report;
  const auto num_transfers =
      std::ranges::count_if(plan.transfers, [](const Transfer& t) { return t.src != t.dst; });
  out << "traffic    " << bytes_text(report.total_bytes) << " forward; ring or all-gather "
      << bytes_text(report.ring_bytes) << " (" << share_text(report.total_bytes, report.ring_bytes)
      << " of it), lower bound " << bytes_text(report.lower_bound_bytes) << "; " << num_transfers
      << " transfers\n";
  out << "stages     " << stages_text(plan) << "\n";
  out << "predicted  forward " << seconds_text(report.forward_seconds) << ", backward "
      << seconds_text(report.backward_seconds) << ", of the forward "
      << seconds_text(report.exposed_comm_seconds) << " waiting\n";
}

void describe_ranks(std::ostringstream& out, const Plan& plan) {
  const PlanReport& report = plan.report;
  const std::size_t num_ranks = plan.ranks.size();
  const std::size_t listed = std::min(num_ranks, kMaxListedRanks);
  out << "\n  rank      rows    slices            pairs  received rows          sent\n";
  for (std::size_t r = 0; r < listed; ++r) {
    std::int64_t sent = 0;
    for (std::size_t dst = 0; dst < num_ranks; ++dst) {
      sent += report.pair_bytes[r * num_ranks + dst];
    }
    out << std::setw(6) << r << std::setw(10) << report.rank_rows[r] << std::setw(10)
        << plan.ranks[r].slices.size() << std::setw(17) << report.rank_area[r] << std::setw(15)
        << report.remote_rows[r] << std::setw(14) << bytes_text(sent) << "\n";
  }
  if (listed == num_ranks) return;
  const auto [low, high] =
      std::minmax_element(report.remote_rows.begin(), report.remote_rows.end());
  out << "  ... " << num_ranks - listed << " more; ranks receive " << *low << " to " << *high
      << " rows\n";
}

}  // namespace

std::string describe(const Plan& plan) {
  std::ostringstream out;
  describe_mask(out, plan);
  describe_placement(out, plan);
  describe_traffic(out, plan);
  out << "digest     " << std::hex << std::setw(16) << std::setfill('0') << plan.digest << std::dec
      << std::setfill(' ') << "\n";
  describe_ranks(out, plan);
  return out.str();
}

}  // namespace magi
