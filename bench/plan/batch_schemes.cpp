// SPDX-License-Identifier: Apache-2.0
#include "bench/plan/batch_schemes.hpp"

#include <algorithm>
#include <limits>

#include "base/math.hpp"
#include "batch/slots.hpp"

namespace magi::bench {
namespace {

using batch::Slots;
using batch::Spread;
using batch::Ticks;
using batch::Work;

/// Rows of a rank below which no limit is tried.
constexpr std::int32_t kLeastLimit = 1024;

/// The config with a chunk of one row, so that no scheme pays for padding.
BatchConfig without_padding(BatchConfig config) {
  config.chunk_size = 1;
  return config;
}

/// The longest rank of each micro-batch, one after the other.
double sum_of_longest(std::span<const double> rank_seconds, std::int32_t num_ranks) {
  double sum = 0.0;
  const auto count = static_cast<std::size_t>(num_ranks);
  for (; !rank_seconds.empty(); rank_seconds = rank_seconds.subspan(count)) {
    sum += std::ranges::max(rank_seconds.first(count));
  }
  return sum;
}

/// Groups of ranks of several micro-batches, and what they hold.
class Groups {
 public:
  Groups(const batch::BatchWork& work, const BatchConfig& config, std::int32_t num_micro_batches)
      : config_(config), slots_(config, work, num_micro_batches) {}

  /// A sample on `count` ranks from a slot on.
  Spread on(const Work& work, std::int32_t slot, std::int32_t count) const {
    Spread spread{.work = work,
                  .micro_batch = slot / config_.num_ranks,
                  .first = slot % config_.num_ranks,
                  .chunks = {}};
    for (std::int32_t i = 0; i < count; ++i) {
      spread.chunks.push_back(work.rows / count + (i < work.rows % count ? 1 : 0));
    }
    return spread;
  }
  bool has_room(const Spread& spread) const {
    for (std::size_t i = 0; i < spread.chunks.size(); ++i) {
      if (slots_.room(first_slot(spread) + i) < spread.chunks[i]) return false;
    }
    return true;
  }
  Ticks longest(const Spread& spread) const {
    Ticks longest = 0;
    for (std::size_t i = 0; i < spread.chunks.size(); ++i) {
      longest = std::max(longest, slots_.time(first_slot(spread) + i));
    }
    return longest;
  }
  void add(const Spread& spread) { slots_.add(spread); }

  /// Adds a sample to the aligned group that would end first and has room; false where none has.
  bool add_to_lightest(const Work& work, std::int32_t count) {
    std::optional<Spread> best;
    Ticks least = std::numeric_limits<Ticks>::max();
    const auto size = static_cast<std::int32_t>(slots_.size());
    for (std::int32_t slot = 0; slot + count <= size; slot += count) {
      const Spread spread = on(work, slot, count);
      if (!has_room(spread)) continue;
      const Ticks time = longest(spread);
      if (time < least) {
        least = time;
        best = spread;
      }
    }
    if (best) slots_.add(*best);
    return best.has_value();
  }

  BatchFigures figures(const batch::BatchWork& work, std::int32_t num_micro_batches) const {
    BatchFigures figures{.scheme = {}, .num_micro_batches = num_micro_batches};
    Ticks fetch = 0;
    Ticks cross = 0;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      figures.most_rows = std::max(figures.most_rows, slots_.padded_rows(slot));
      fetch += slots_.fetch(slot);
      cross += slots_.cross(slot);
    }
    const auto bytes = [&](Ticks ticks, Ticks row) {
      const Ticks rows = row == 0 ? 0 : ticks / row;
      return static_cast<std::int64_t>(static_cast<double>(rows) * config_.cost.bytes_per_token);
    };
    figures.network_bytes = bytes(cross, work.row_cross);
    figures.node_bytes = bytes(fetch, work.row_fetch) - figures.network_bytes;
    std::vector<double> seconds;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      seconds.push_back(static_cast<double>(slots_.time(slot)) / batch::kTicksPerSecond);
    }
    figures.seconds = sum_of_longest(seconds, config_.num_ranks);
    return figures;
  }

 private:
  std::size_t first_slot(const Spread& spread) const {
    return static_cast<std::size_t>(spread.micro_batch) *
               static_cast<std::size_t>(config_.num_ranks) +
           static_cast<std::size_t>(spread.first);
  }

  const BatchConfig& config_;
  Slots slots_;
};

/// Tries numbers of micro-batches from the least on until `pack(groups)` holds the batch, and some
/// more, which may be faster.
template <typename Pack>
std::optional<BatchFigures> fastest(const batch::BatchWork& work, const BatchConfig& config,
                                    const Pack& pack) {
  constexpr std::int32_t kMore = 2;
  std::optional<BatchFigures> best;
  std::int32_t count = std::max(batch::least_micro_batches(work, config), 1);
  for (std::int32_t found = 0; found <= kMore; ++count) {
    Groups groups(work, config, count);
    if (!pack(groups, count)) continue;
    ++found;
    const BatchFigures figures = groups.figures(work, count);
    if (!best || figures.seconds < best->seconds) best = figures;
  }
  return best;
}

void keep_faster(std::optional<BatchFigures> other, const char* scheme,
                 std::optional<BatchFigures>& kept) {
  if (!other || (kept && kept->seconds <= other->seconds)) return;
  kept = std::move(other);
  kept->scheme = scheme;
}

/// In the order of the batch, each to the first group with room, micro-batch by micro-batch.
bool fill_in_order(const std::vector<Work>& works, std::int32_t group_size, std::int32_t num_groups,
                   Groups& groups) {
  std::int32_t next = 0;
  for (const Work& work : works) {
    std::int32_t tried = 0;
    for (;; ++tried, next = (next + 1) % num_groups) {
      if (tried == num_groups) return false;
      const Spread spread = groups.on(work, next * group_size, group_size);
      if (!groups.has_room(spread)) continue;
      groups.add(spread);
      break;
    }
  }
  return true;
}

}  // namespace

std::optional<BatchFigures> simulate_fixed_size(std::span<const BatchSample> samples,
                                                const BatchConfig& given, std::int32_t group_size,
                                                bool is_balanced) {
  const BatchConfig config = without_padding(given);
  const batch::BatchWork work = batch::work_of(samples, config);
  if (config.num_ranks % group_size != 0) return std::nullopt;
  for (const Work& one : work.samples) {
    if (ceil_div(one.rows, group_size) > config.rows_per_rank) return std::nullopt;
  }
  std::vector<Work> in_order = work.samples;
  std::ranges::sort(in_order, {}, &Work::sample);
  return fastest(work, config, [&](Groups& groups, std::int32_t num_micro_batches) {
    if (!is_balanced) {
      return fill_in_order(in_order, group_size, num_micro_batches * config.num_ranks / group_size,
                           groups);
    }
    return std::ranges::all_of(
        work.samples, [&](const Work& one) { return groups.add_to_lightest(one, group_size); });
  });
}

std::optional<BatchFigures> simulate_powers(std::span<const BatchSample> samples,
                                            const BatchConfig& given, std::int32_t rows_per_rank) {
  const BatchConfig config = without_padding(given);
  const batch::BatchWork work = batch::work_of(samples, config);
  const auto ranks_for = [&](const Work& one, std::int32_t rows) {
    std::int32_t ranks = 1;
    while (ceil_div(one.rows, ranks) > rows) ranks *= 2;
    return ranks;
  };
  std::int32_t most = 1;
  while (most * 2 <= config.num_ranks && config.num_ranks % (most * 2) == 0) most *= 2;
  for (const Work& one : work.samples) {
    if (ranks_for(one, config.rows_per_rank) > most) return std::nullopt;
  }
  return fastest(work, config, [&](Groups& groups, std::int32_t) {
    return std::ranges::all_of(work.samples, [&](const Work& one) {
      return groups.add_to_lightest(one, std::min(ranks_for(one, rows_per_rank), most));
    });
  });
}

std::vector<BatchFigures> compare_batch(std::span<const BatchSample> samples,
                                        const BatchConfig& config) {
  const BatchPlan plan = plan_batch(samples, config);
  std::optional<BatchFigures> fixed;
  std::optional<BatchFigures> balanced;
  std::optional<BatchFigures> powers;
  for (std::int32_t size = 1; size <= config.num_ranks; size *= 2) {
    keep_faster(simulate_fixed_size(samples, config, size, false), "fixed", fixed);
    keep_faster(simulate_fixed_size(samples, config, size, true), "balanced", balanced);
  }
  keep_faster(simulate_powers(samples, config, config.rows_per_rank), "powers", powers);
  std::optional<BatchFigures> tuned;
  for (std::int32_t rows = config.rows_per_rank; rows >= kLeastLimit; rows /= 2) {
    keep_faster(simulate_powers(samples, config, rows), "tuned_powers", tuned);
  }
  std::vector<BatchFigures> found{
      {.scheme = "planned",
       .seconds = sum_of_longest(plan.report.rank_seconds, config.num_ranks),
       .num_micro_batches = static_cast<std::int32_t>(plan.micro_batches.size()),
       .most_rows = plan.report.rank_rows.empty() ? 0 : std::ranges::max(plan.report.rank_rows),
       .node_bytes = plan.report.node_bytes,
       .network_bytes = plan.report.network_bytes}};
  for (const auto& figures : {fixed, balanced, powers, tuned}) {
    if (figures) found.push_back(*figures);
  }
  return found;
}

}  // namespace magi::bench
