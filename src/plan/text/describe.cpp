// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <string>

#include "base/check.hpp"
#include "base/math.hpp"
#include "base/text_stream.hpp"
#include "base/words.hpp"
#include "magi/plan.hpp"
#include "plan/cost/even_step.hpp"
#include "plan/cost/flat.hpp"

namespace magi {
namespace {

/// Ranks listed one by one; larger plans show the extremes only.
constexpr std::size_t kMaxListedRanks = 16;

std::string fixed(double value, int digits) {
  std::ostringstream text = text_stream();
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
      << counted(static_cast<std::int64_t>(plan.mask.slices.size()), "slice") << ", "
      << counted(pairs, "pair") << " (" << share_text(pairs, all) << " of all)\n";
  out << "heads      " << plan.config.num_heads_q << " query, " << plan.config.num_heads_kv
      << " key-value, dim " << plan.config.head_dim_qk << " / " << plan.config.head_dim_v << ", "
      << counted(plan.config.element_bytes, "byte") << " an element";
  if (plan.num_head_shares > 1) {
    out << ", shared out to groups of " << plan.num_head_shares << " neighbouring ranks";
  }
  out << "\n";
}

void describe_placement(std::ostringstream& out, const Plan& plan) {
  const Placement& q = plan.placement_q;
  out << "placement  " << placement_name(plan.config.placement.algorithm) << ", "
      << counted(q.num_chunks(), "chunk") << " of " << counted(q.chunk_size, "row") << " on "
      << counted(q.num_ranks, "rank") << ", " << counted(q.num_rows - plan.mask.rows_q, "row")
      << " of padding\n";
  if (plan.placement_k != q) {
    const Placement& k = plan.placement_k;
    out << "keys       " << counted(k.num_chunks(), "chunk") << " of "
        << counted(k.chunk_size, "row") << ", " << counted(k.num_rows - plan.mask.rows_k, "row")
        << " of padding\n";
  }
  out << "balance    " << fixed(plan.report.balance, 4) << " (largest area / mean)\n";
  const std::vector<std::int64_t>& runs = plan.report.rank_runs;
  if (runs.empty() || plan.mask.rows_q != plan.mask.rows_k) return;
  out << "runs       " << std::ranges::max(runs) << " at most on a rank, "
      << std::accumulate(runs.begin(), runs.end(), std::int64_t{0})
      << " in all, that come after rows of other ranks\n";
}

/// Says what a plan receives when, in words.
std::string stages_text(const Plan& plan) {
  const std::int32_t num_remote = num_stages(plan) - 1;
  if (plan.exchanges.empty()) return "own keys only, nothing is received";
  if (num_remote == 0) return "one: everything is fetched first";
  const bool has_own_stage = plan.num_head_shares == 1;
  std::string text =
      (has_own_stage ? "own keys, then " : "") + counted(num_remote, "stage") + " of received keys";
  const bool is_by_heads = plan.exchanges.front().heads.size() < planner::heads_per_share(plan);
  const bool is_by_rows = plan.exchanges.back().segment > 1;
  if (num_remote > 1) {
    text += is_by_heads ? (is_by_rows ? " by rows and heads" : " by heads") : " by rows";
  }
  const std::size_t num_q = plan.ranks.front().q.segments.size();
  if (num_q > 1) {
    text += ", with " + std::to_string(num_q - 1) + (num_q == 2 ? " segment" : " segments") +
            " of received queries";
  }
  return text;
}

/// Says what crosses between nodes in a forward.
void describe_nodes(std::ostringstream& out, const Plan& plan) {
  if (!has_nodes(plan.config)) return;
  const std::int32_t size = plan.config.devices_per_node;
  const std::int32_t num_ranks = plan.config.num_ranks;
  std::int64_t crossing = 0;
  auto bytes = plan.report.pair_bytes.begin();
  for (std::int32_t from = 0; from < num_ranks; ++from) {
    for (std::int32_t to = 0; to < num_ranks; ++to, ++bytes) {
      if (from / size != to / size) crossing += *bytes;
    }
  }
  const bool is_by_node = std::ranges::any_of(
      plan.exchanges, [](const Exchange& exchange) { return exchange.hop != 0; });
  out << "nodes      " << counted(ceil_div(num_ranks, size), "node") << " of "
      << counted(size, "rank") << ", " << bytes_text(crossing) << " between them, "
      << (is_by_node ? "handed on inside" : "straight to each reader") << "\n";
}

void describe_traffic(std::ostringstream& out, const Plan& plan) {
  const PlanReport& report = plan.report;
  const auto num_transfers =
      std::ranges::count_if(plan.transfers, [](const Transfer& t) { return t.src != t.dst; });
  out << "traffic    " << bytes_text(report.total_bytes) << " forward; ring or all-gather "
      << bytes_text(report.ring_bytes) << " (" << share_text(report.total_bytes, report.ring_bytes)
      << " of it), lower bound " << bytes_text(report.lower_bound_bytes) << "; "
      << counted(num_transfers, "transfer") << "\n";
  out << "memory     " << bytes_text(*std::ranges::max_element(report.rank_memory))
      << " at most on a rank, for rows of others and their gradients";
  if (plan.stages_in_flight > 0) {
    out << ", where " << counted(plan.stages_in_flight, "stage") << " lie at a time";
  }
  out << "\n";
  out << "stages     " << stages_text(plan) << "\n";
  out << "predicted  forward " << seconds_text(report.forward_seconds) << ", backward "
      << seconds_text(report.backward_seconds) << ", of the forward "
      << seconds_text(report.exposed_comm_seconds) << " waiting\n";
  const double gain = planner::possible_gain(plan);
  if (plan.config.work == WorkMode::Keys && gain > 0.0) {
    out << "choice     work auto may save up to " << seconds_text(gain) << " of the step\n";
  }
}

void describe_ranks(std::ostringstream& out, const Plan& plan) {
  const PlanReport& report = plan.report;
  const std::size_t num_ranks = plan.ranks.size();
  const std::size_t listed = std::min(num_ranks, kMaxListedRanks);
  // Columns of plans of usual size stay where they are; longer numbers widen theirs.
  const auto width = [](int usual, std::int64_t most) {
    return std::max(usual, static_cast<int>(std::to_string(most).size()) + 2);
  };
  const int rows_width = width(10, std::ranges::max(report.rank_rows));
  const int pairs_width = width(17, std::ranges::max(report.rank_area));
  const int received_width = width(15, std::ranges::max(report.remote_rows));
  out << "\n  rank" << std::setw(rows_width) << "rows" << std::setw(10) << "slices"
      << std::setw(pairs_width) << "pairs" << std::setw(received_width) << "received rows"
      << std::setw(14) << "sent"
      << "\n";
  for (std::size_t r = 0; r < listed; ++r) {
    std::int64_t sent = 0;
    for (std::size_t dst = 0; dst < num_ranks; ++dst) {
      sent += report.pair_bytes[r * num_ranks + dst];
    }
    out << std::setw(6) << r << std::setw(rows_width) << report.rank_rows[r] << std::setw(10)
        << plan.ranks[r].slices.size() << std::setw(pairs_width) << report.rank_area[r]
        << std::setw(received_width) << report.remote_rows[r] << std::setw(14) << bytes_text(sent)
        << "\n";
  }
  if (listed == num_ranks) return;
  const auto [low, high] = std::ranges::minmax(report.remote_rows);
  out << "  ... " << num_ranks - listed << " more; ranks receive " << low << " to " << high
      << " rows\n";
}

}  // namespace

std::string describe(const Plan& plan) {
  if (plan.ranks.empty()) throw invalid("plan.ranks", "empty", "those of a plan that was made");
  std::ostringstream out = text_stream();
  describe_mask(out, plan);
  describe_placement(out, plan);
  describe_traffic(out, plan);
  describe_nodes(out, plan);
  out << "digest     " << std::hex << std::setw(16) << std::setfill('0') << plan.digest << std::dec
      << std::setfill(' ') << "\n";
  describe_ranks(out, plan);
  return out.str();
}

}  // namespace magi
