// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "plan/cost/timeline.hpp"
#include "plan/place_rows.hpp"
#include "plan/placement/chunk_table.hpp"
#include "plan/value/config.hpp"
#include "plan/value/runs.hpp"

namespace magi::planner {
namespace {

/// The most visits of key blocks.
constexpr std::int64_t kMostVisits = 4'000'000;
/// The same and swaps where runs count: few swaps keep runs long, and searches begin from several
/// starts.
constexpr std::int64_t kSwapsPerChunkOfRuns = 256;
constexpr std::int64_t kMostVisitsOfRuns = 400'000;
constexpr std::int64_t kLinksPerVisit = 8;   ///< to look at
constexpr std::int32_t kLongestStretch = 8;  ///< of chunks that are swapped at once
/// More separate ranges of keys than this, in the mean over chunks, make too many blocks.
constexpr std::size_t kMostRangesPerChunk = 8;

/// Neighbouring key rows of one chunk that every chunk sees as a whole or not at all (but for the
/// diagonals of bands, which count as seen).
struct KeyBlock {
  std::int32_t chunk = 0;
  std::int32_t rows = 0;
};

std::vector<std::int32_t> block_borders(const ChunkTable& table) {
  std::vector<std::int32_t> borders;
  for (std::int32_t c = 0; c < table.num_chunks(); ++c) borders.push_back(table.rows(c).begin);
  borders.push_back(table.num_rows);
  for (const Range& keys : table.keys) {
    borders.push_back(keys.begin);
    borders.push_back(keys.end);
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

class StepSearch {
 public:
  StepSearch(const ChunkTable& table, const PlanConfig& config, const Placement& start)
      : table_(table), step_(config), num_ranks_(config.num_ranks), rank_of_(start.chunk_rank) {
    list_blocks();
  }

  /// Makes runs count: each has its price, and no swap adds to those above the bound.
  void count_runs(const PlanConfig& config, std::vector<ChunkLink> links) {
    max_runs_ = config.max_runs.value_or(kMaxRows);
    run_ns_ = 2e9 * config.cost.seconds_per_run;  // of both passes
    links_ = std::move(links);
    runs_above_ = runs_above_bound();
  }

  /// Whether to count who reads what is as much work as the whole search may be.
  bool is_too_large() const {
    std::int64_t visits = 0;
    for (const Range& blocks : seen_) visits += blocks.size();
    return visits > kMostVisits;
  }

  /// Returns what swaps leave, as long as visits last. One that raises the objective is undone.
  std::vector<std::int32_t> run(std::int64_t swaps_per_chunk) {
    count_reads();
    double now = objective();
    const std::int64_t last_visit = max_runs_ ? visits_ + kMostVisitsOfRuns : kMostVisits;
    const std::int64_t num_swaps =
        (max_runs_ ? kSwapsPerChunkOfRuns : swaps_per_chunk) * table_.num_chunks();
    for (std::int64_t i = 0; i < num_swaps && visits_ < last_visit; ++i) {
      const auto [a, b] = draw_pair();
      const std::int32_t length = max_runs_ ? draw_length(a, b) : 1;
      if (rank_of(a) == rank_of(b) || (max_runs_ && adds_runs(a, b, length))) continue;
      swap(a, b, length);
      const double then = objective();
      if (then > now) {
        swap(a, b, length);
      } else {
        now = then;
      }
    }
    return std::move(rank_of_);
  }

 private:
  void list_blocks() {
    const std::vector<std::int32_t> borders = block_borders(table_);
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      blocks_.push_back({borders[i] / table_.chunk_size, borders[i + 1] - borders[i]});
    }
    const auto index = [&](std::int32_t row) {
      return static_cast<std::int32_t>(std::ranges::lower_bound(borders, row) - borders.begin());
    };
    for (std::int32_t c = 0; c < table_.num_chunks(); ++c) {
      const Range rows = table_.rows(c);
      own_.push_back({index(rows.begin), index(rows.end)});
      for (const Range& keys : table_.keys_of(c)) {
        seen_.push_back({index(keys.begin), index(keys.end)});
      }
    }
  }

  /// The readers of rows as rows are placed at first.
  void count_reads() {
    const auto ranks = static_cast<std::size_t>(num_ranks_);
    counts_.assign(ranks * blocks_.size(), 0);
    readers_.assign(blocks_.size(), 0);
    received_.assign(ranks, 0);
    sent_.assign(ranks, 0);
    areas_.assign(ranks, 0);
    for (std::int32_t c = 0; c < table_.num_chunks(); ++c) give(c, rank_of(c));
    unit_ = mean_step();
  }

  std::int32_t rank_of(std::int32_t chunk) const {
    return rank_of_[static_cast<std::size_t>(chunk)];
  }
  std::int32_t owner(std::size_t block) const { return rank_of(blocks_[block].chunk); }
  std::int32_t& count(std::int32_t rank, std::size_t block) {
    return counts_[static_cast<std::size_t>(rank) * blocks_.size() + block];
  }

  template <typename Visit>
  void visit_seen(std::int32_t chunk, Visit&& visit) {
    const auto c = static_cast<std::size_t>(chunk);
    for (std::int32_t s = table_.key_begin[c]; s < table_.key_begin[c + 1]; ++s) {
      const Range blocks = seen_[static_cast<std::size_t>(s)];
      visits_ += blocks.size();
      for (std::int32_t b = blocks.begin; b < blocks.end; ++b) visit(static_cast<std::size_t>(b));
    }
  }

  /// `sign` times the rows of a block that a rank starts to read.
  void read(std::int32_t rank, std::size_t block, std::int32_t sign) {
    readers_[block] += sign;
    const std::int32_t from = owner(block);
    if (from == rank) return;
    received_[static_cast<std::size_t>(rank)] += sign * blocks_[block].rows;
    sent_[static_cast<std::size_t>(from)] += sign * blocks_[block].rows;
  }
  void give(std::int32_t chunk, std::int32_t rank) {
    visit_seen(chunk, [&](std::size_t block) {
      if (count(rank, block)++ == 0) read(rank, block, 1);
    });
    areas_[static_cast<std::size_t>(rank)] += table_.area[static_cast<std::size_t>(chunk)];
  }
  void take(std::int32_t chunk, std::int32_t rank) {
    visit_seen(chunk, [&](std::size_t block) {
      if (--count(rank, block) == 0) read(rank, block, -1);
    });
    areas_[static_cast<std::size_t>(rank)] -= table_.area[static_cast<std::size_t>(chunk)];
  }
  /// The rows of a chunk change hands; who reads them stays.
  void move_rows(std::int32_t chunk, std::int32_t to) {
    const auto old_rank = static_cast<std::size_t>(rank_of(chunk));
    const auto new_rank = static_cast<std::size_t>(to);
    const Range own = own_[static_cast<std::size_t>(chunk)];
    visits_ += own.size();
    for (std::int32_t b = own.begin; b < own.end; ++b) {
      const auto block = static_cast<std::size_t>(b);
      const std::int64_t rows = blocks_[block].rows;
      const bool old_reads = count(rank_of(chunk), block) > 0;
      const bool new_reads = count(to, block) > 0;
      sent_[old_rank] -= rows * (readers_[block] - (old_reads ? 1 : 0));
      sent_[new_rank] += rows * (readers_[block] - (new_reads ? 1 : 0));
      if (old_reads) received_[old_rank] += rows;
      if (new_reads) received_[new_rank] -= rows;
    }
    rank_of_[static_cast<std::size_t>(chunk)] = to;
  }
  void swap(std::int32_t a, std::int32_t b, std::int32_t length) {
    for (std::int32_t i = 0; i < length; ++i) {
      if (rank_of(a + i) != rank_of(b + i)) swap(a + i, b + i);
    }
  }
  void swap(std::int32_t a, std::int32_t b) {
    const std::int32_t rank_a = rank_of(a);
    const std::int32_t rank_b = rank_of(b);
    take(a, rank_a);
    take(b, rank_b);
    move_rows(a, rank_b);
    move_rows(b, rank_a);
    give(a, rank_b);
    give(b, rank_a);
  }

  std::int64_t runs_above_bound() {
    visits_ += static_cast<std::int64_t>(links_.size()) / kLinksPerVisit;
    runs_ = planner::count_runs(links_, rank_of_, num_ranks_);
    std::int64_t above = 0;
    for (const std::int64_t runs : runs_) above += std::max<std::int64_t>(0, runs - *max_runs_);
    return above;
  }
  /// Whether a swap makes more runs than the bound allows, looked at before all that it moves.
  bool adds_runs(std::int32_t a, std::int32_t b, std::int32_t length) {
    const auto swap_ranks = [&] {
      std::swap_ranges(rank_of_.begin() + a, rank_of_.begin() + a + length, rank_of_.begin() + b);
    };
    swap_ranks();
    const bool is_adding = runs_above_bound() > runs_above_;
    swap_ranks();
    return is_adding;
  }

  double step_of(std::size_t rank) const {
    return step_.ns(areas_[rank], std::max(received_[rank], sent_[rank])) +
           (max_runs_ ? static_cast<double>(runs_[rank]) * run_ns_ : 0.0);
  }
  double mean_step() const {
    double total = 0.0;
    for (std::size_t r = 0; r < areas_.size(); ++r) total += step_of(r);
    return total / num_ranks_;
  }
  /// The sum over ranks of the sixteenth power of their steps: the slowest ones count. Runs above
  /// the bound count before all else.
  double objective() {
    if (max_runs_) runs_above_ = runs_above_bound();
    double total = static_cast<double>(runs_above_) * 1e100;
    double slowest = 0.0;
    for (std::size_t r = 0; r < areas_.size(); ++r) {
      const double step = step_of(r) / unit_;
      if (step > slowest) {
        slowest = step;
        slowest_ = static_cast<std::int32_t>(r);
      }
      const double square = step * step;
      const double fourth = square * square;
      const double eighth = fourth * fourth;
      total += eighth * eighth;
    }
    return total;
  }

  /// Draws the length of two stretches from these chunks on that do not meet.
  std::int32_t draw_length(std::int32_t a, std::int32_t b) {
    const std::int32_t most = std::min(std::abs(a - b), table_.num_chunks() - std::max(a, b));
    return draw(2) == 0 ? 1 : draw(std::clamp(most, 1, kLongestStretch)) + 1;
  }
  std::int32_t draw(std::int32_t count) { return random_.between(0, count - 1); }
  /// A chunk of the slowest rank, where it has any, every other time, and any other. The slowest is
  /// that of the last objective, be its swap undone or not.
  std::pair<std::int32_t, std::int32_t> draw_pair() {
    const std::int32_t num_chunks = table_.num_chunks();
    const std::int32_t b = draw(num_chunks);
    std::int32_t a = draw(num_chunks);
    if (draw(2) == 0) {
      std::int32_t n = 0;
      for (; n < num_chunks && rank_of(a) != slowest_; ++n) {
        a = a + 1 == num_chunks ? 0 : a + 1;
      }
      visits_ += n;
    }
    return {a, b};
  }

  const ChunkTable& table_;
  GatheredStep step_;
  std::int32_t num_ranks_;
  std::vector<std::int32_t> rank_of_;
  std::vector<KeyBlock> blocks_;
  std::vector<Range> own_;             ///< of each chunk, in blocks
  std::vector<Range> seen_;            ///< as ChunkTable::keys, in blocks
  std::vector<std::int32_t> counts_;   ///< [num_ranks, blocks]: chunks of a rank that see a block
  std::vector<std::int32_t> readers_;  ///< [blocks] ranks that see it
  std::vector<std::int64_t> received_;
  std::vector<std::int64_t> sent_;
  std::vector<std::int64_t> areas_;
  std::int64_t visits_ = 0;
  std::int32_t slowest_ = 0;
  double unit_ = 1.0;                     ///< [ns]
  std::optional<std::int32_t> max_runs_;  ///< given where runs count
  double run_ns_ = 0.0;
  std::vector<ChunkLink> links_;
  std::vector<std::int64_t> runs_;  ///< as rank_runs
  std::int64_t runs_above_ = 0;     ///< the bound, of all ranks
  RandomStream random_{1};
};

}  // namespace

Placement place_for_step(const Mask& mask, const PlanConfig& config, const Placement& start,
                         std::int64_t swaps_per_chunk) {
  const bool has_runs = asks_for_runs(config);
  if (start.num_ranks == 1 || start.num_ranks > kMostRanksMovingQueries) return start;
  if (has_nodes(config) && !has_runs) return start;
  const ChunkTable table = make_chunk_table(mask, start.num_rows, start.chunk_size);
  const auto num_chunks = static_cast<std::size_t>(table.num_chunks());
  if (table.keys.empty() || table.keys.size() > kMostRangesPerChunk * num_chunks) return start;
  StepSearch search(table, config, start);
  if (search.is_too_large()) return start;
  if (has_runs) search.count_runs(config, links_of_chunks(mask, start.chunk_size));
  return placement_from_chunks(start.num_rows, start.chunk_size, start.num_ranks,
                               search.run(swaps_per_chunk));
}

}  // namespace magi::planner
