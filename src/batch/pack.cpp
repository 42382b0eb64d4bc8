// SPDX-License-Identifier: Apache-2.0
#include "batch/pack.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "plan/placement/lightest_rank.hpp"

namespace magi::batch {
namespace {

/// Neighbouring ranks of a micro-batch.
struct Window {
  std::int32_t micro_batch = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// The chunks of a sample that each rank of a window takes, so that all who take some end alike;
/// those who would end later without any take none.
struct Filling {
  double level = 0.0;  ///< the time at which they end; infinity where chunks do not fit
  std::vector<std::int32_t> chunks;
};

/// A rank's time is base + fixed + slope * chunks, once it takes any chunk.
struct Line {
  double base = 0.0;
  double most = 0.0;  ///< chunks
};

struct Lines {
  std::vector<Line> ranks;
  double fixed = 0.0;
  double slope = 0.0;

  double chunks_at(const Line& line, double level) const {
    const double above = level - line.base - fixed;
    return above <= 0.0 ? 0.0 : std::min(above / slope, line.most);
  }
  double chunks_at(double level) const {
    double sum = 0.0;
    for (const Line& line : ranks) sum += chunks_at(line, level);
    return sum;
  }
};

Lines lines_of(const Work& work, const Window& window, const Slots& slots, const BatchWork& batch,
               const BatchConfig& config) {
  Lines lines;
  const auto chunk_rows = static_cast<double>(config.chunk_size);
  const double chunks = std::ceil(work.rows / chunk_rows);
  const double chunk_ticks = static_cast<double>(work.ticks) / chunks;
  const double fetch = static_cast<double>(batch.row_fetch) * chunk_rows;
  const std::int32_t size = node_size(config);
  const std::int32_t nodes = ceil_div(window.count, size);
  const double cross =
      static_cast<double>(batch.row_cross) * chunk_rows * chunks * (1.0 - 1.0 / nodes) / size;
  // Of one rank nothing is fetched; what a rank holds of several it need not fetch.
  const bool is_fetching = window.count > 1 && fetch * chunks > cross;
  lines.fixed = window.count == 1 ? 0.0 : std::max(fetch * chunks, cross);
  lines.slope = chunk_ticks - (is_fetching ? fetch : 0.0);
  // Where fetching outweighs computing, memory alone asks for ranks, and they share alike.
  lines.slope = std::max(lines.slope, 1e-3 * (chunk_ticks + fetch) + 1e-9);
  lines.ranks.reserve(static_cast<std::size_t>(window.count));
  const std::size_t first = slots.slot_of(window.micro_batch, window.first);
  for (std::size_t slot = first; slot < first + static_cast<std::size_t>(window.count); ++slot) {
    lines.ranks.push_back(
        {static_cast<double>(slots.time(slot)), static_cast<double>(slots.chunks_left(slot))});
  }
  return lines;
}

/// The lowest level at which the ranks hold all chunks.
double level_of(const Lines& lines, double chunks) {
  double low = std::numeric_limits<double>::max();
  double high = 0.0;
  double room = 0.0;
  for (const Line& line : lines.ranks) {
    low = std::min(low, line.base);
    high = std::max(high, line.base + lines.fixed + lines.slope * std::min(line.most, chunks));
    room += line.most;
  }
  if (room < chunks) return std::numeric_limits<double>::infinity();
  constexpr int kSteps = 40;
  for (int i = 0; i < kSteps && high - low > 1e-5 * high; ++i) {
    const double middle = 0.5 * (low + high);
    (lines.chunks_at(middle) >= chunks ? high : low) = middle;
  }
  return high;
}

Filling fill(const Work& work, const Window& window, const Slots& slots, const BatchWork& batch,
             const BatchConfig& config) {
  const Lines lines = lines_of(work, window, slots, batch, config);
  const std::int32_t chunks = ceil_div(work.rows, config.chunk_size);
  Filling filling{.level = level_of(lines, chunks), .chunks = {}};
  if (std::isinf(filling.level)) return filling;
  // Sums are rounded, so that parts add up; at the level the ranks hold as much or slightly more.
  const double all = lines.chunks_at(filling.level);
  double sum = 0.0;
  std::int32_t given = 0;
  for (const Line& line : lines.ranks) {
    sum += lines.chunks_at(line, filling.level) * (chunks / all);
    const std::int32_t end = std::min(static_cast<std::int32_t>(std::lround(sum)), chunks);
    filling.chunks.push_back(end - given);
    given = end;
  }
  return filling;
}

/// Which samples spread, and over how many ranks at least. By time: those longer than the bound,
/// over the fewest on which they end at `level` times the bound. By rows: those with more than
/// `rows` of a rank's, over the fewest with no more each.
struct Shape {
  double level = 1.0;
  double rows = 0.0;  ///< 0: by time
};
/// Samples on few ranks fetch least; on many they leave each rank room for short ones.
constexpr std::array kShapes = {Shape{1.0},          Shape{0.95},         Shape{0.85},
                                Shape{0.7},          Shape{.rows = 1.0},  Shape{.rows = 0.7},
                                Shape{.rows = 0.55}, Shape{.rows = 0.45}, Shape{.rows = 0.35},
                                Shape{.rows = 0.28}, Shape{.rows = 0.22}, Shape{.rows = 0.17}};
/// Long samples times ranks and micro-batches beyond which none spreads but for memory: so many are
/// shared out well whole, and spreading each takes a look at all ranks.
constexpr std::size_t kMostLooks = std::size_t{1} << 22;
/// A packing this close to the bound is not searched further.
constexpr double kNear = 1.003;
constexpr int kRefills = 2;

class Packer {
 public:
  Packer(const BatchWork& batch, const BatchConfig& config, std::int32_t num_micro_batches)
      : batch_(batch),
        config_(config),
        num_micro_batches_(num_micro_batches),
        slots_(config, batch, num_micro_batches) {
    for (const Work& work : batch.samples) least_rows_ = std::min(least_rows_, work.rows);
  }

  std::optional<Packing> run(const Shape& shape, Ticks bound) {
    slots_ = Slots(config_, batch_, num_micro_batches_);
    packing_ = {};
    packing_.whole.resize(slots_.size());
    const auto limit = static_cast<double>(bound);
    const auto is_long = [&](const Work& work) {
      if (shape.rows > 0.0) return work.rows > shape.rows * room_rows();
      return static_cast<double>(work.ticks) > limit || work.rows > room_rows();
    };
    const auto num_long = static_cast<std::size_t>(std::ranges::count_if(batch_.samples, is_long));
    if (shape.rows < 1.0 && num_long * slots_.size() > kMostLooks) return std::nullopt;
    std::vector<Work> short_ones;
    for (const Work& work : batch_.samples) {
      if (!is_long(work)) {
        short_ones.push_back(work);
      } else if (shape.rows > 0.0 ? !spread(work, ranks_by_rows(work, shape))
                                  : !spread_until(work, shape.level * limit)) {
        return std::nullopt;
      }
    }
    if (!deal(short_ones)) return std::nullopt;
    for (int i = 0; i < kRefills; ++i) refill();
    packing_.longest = slots_.longest();
    packing_.step = step_of(packing_.longest, slots_.sum_of_longest());
    return std::move(packing_);
  }

  double step_of(Ticks longest, Ticks sum_of_longest) const {
    return 0.5 * (static_cast<double>(longest) * num_micro_batches_ +
                  static_cast<double>(sum_of_longest));
  }

 private:
  std::int32_t room_rows() const { return chunks_per_rank(config_) * config_.chunk_size; }

  /// Gives each sample to the lightest rank with room; one that no rank has room for spreads.
  bool deal(const std::vector<Work>& samples) {
    LightestRank lightest(slots_.size());
    const auto update = [&](std::size_t slot) {
      if (slots_.room(slot) < least_rows_) {
        lightest.set_full(slot);
      } else {
        lightest.set_load(slot, slots_.time(slot));
      }
    };
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) update(slot);
    for (const Work& work : samples) {
      std::size_t slot = lightest.rank();
      if (slot >= slots_.size() || slots_.room(slot) < work.rows) slot = lightest_for(work);
      if (slot == slots_.size()) {
        if (!spread_until(work, 0.0)) return false;
        const Spread& made = packing_.spreads.back();
        for (std::size_t i = 0; i < made.chunks.size(); ++i) {
          update(slots_.slot_of(made.micro_batch, made.first) + i);
        }
        continue;
      }
      slots_.add(slot, work);
      packing_.whole[slot].push_back(work);
      update(slot);
    }
    return true;
  }

  std::size_t lightest_for(const Work& work) const {
    std::size_t best = slots_.size();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_.room(slot) < work.rows) continue;
      if (best == slots_.size() || slots_.time(slot) < slots_.time(best)) best = slot;
    }
    return best;
  }

  /// Sums over the slots before each, so that windows are compared at once.
  void sum_up() {
    sums_.assign(slots_.size() + 1, {});
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      sums_[slot + 1] = {sums_[slot].first + slots_.time(slot),
                         sums_[slot].second + slots_.chunks_left(slot)};
    }
  }

  /// The least busy window of `count` neighbours of a micro-batch with room for the chunks, within
  /// a node, or of whole nodes; count 0 where there is none.
  Window least_busy(std::int32_t micro_batch, std::int32_t count, std::int32_t chunks) const {
    const std::int32_t size = node_size(config_);
    const bool is_in_node = count <= size;
    Window best{.count = 0};
    Ticks least = std::numeric_limits<Ticks>::max();
    for (std::int32_t first = 0; first < config_.num_ranks; first += is_in_node ? 1 : size) {
      const std::int32_t end = std::min(first + count, config_.num_ranks);
      if (end < first + count && (is_in_node || first > 0)) break;
      if (is_in_node && first / size != (end - 1) / size) continue;
      const auto& before = sums_[slots_.slot_of(micro_batch, first)];
      const auto& after =
          sums_[slots_.slot_of(micro_batch, first) + static_cast<std::size_t>(end - first)];
      if (after.second - before.second < chunks || after.first - before.first >= least) continue;
      least = after.first - before.first;
      best = {.micro_batch = micro_batch, .first = first, .count = end - first};
    }
    return best;
  }

  /// The fewest ranks worth a try for a sample that is to end at `target`.
  std::int32_t fewest(const Work& work, double target) const {
    const std::int32_t chunks = ceil_div(work.rows, config_.chunk_size);
    double ranks = ceil_div(chunks, chunks_per_rank(config_));
    const double fetch = static_cast<double>(batch_.row_fetch) * work.rows;
    const auto ticks = static_cast<double>(work.ticks);
    if (target > fetch && ticks > fetch)
      ranks = std::max(ranks, (ticks - fetch) / (target - fetch));
    return static_cast<std::int32_t>(std::clamp<double>(ranks, 1, config_.num_ranks));
  }

  /// Micro-batches with room for the chunks, the least busy one first.
  std::vector<std::int32_t> by_load(std::int32_t chunks) const {
    const auto load = [&](std::int32_t m) {
      const auto& before = sums_[slots_.slot_of(m, 0)];
      const auto& after = sums_[slots_.slot_of(m + 1, 0)];
      return std::pair{after.first - before.first, after.second - before.second};
    };
    std::vector<std::int32_t> order;
    for (std::int32_t m = 0; m < num_micro_batches_; ++m) {
      if (load(m).second >= chunks) order.push_back(m);
    }
    std::ranges::stable_sort(order, {}, [&](std::int32_t m) { return load(m).first; });
    return order;
  }

  std::int32_t ranks_by_rows(const Work& work, const Shape& shape) const {
    const double count = std::ceil(work.rows / (shape.rows * room_rows()));
    return static_cast<std::int32_t>(std::min<double>(count, config_.num_ranks));
  }

  bool spread_until(const Work& work, double target) {
    return spread(work, fewest(work, target), target);
  }

  /// Spreads a sample over the least busy micro-batch: `count` ranks, or more if that has no room
  /// or they end after `target`; the number on which it ends first. False where no micro-batch has
  /// room.
  bool spread(const Work& work, std::int32_t count,
              double target = std::numeric_limits<double>::infinity()) {
    sum_up();
    const std::int32_t size = node_size(config_);
    const std::int32_t chunks = ceil_div(work.rows, config_.chunk_size);
    const std::vector<std::int32_t> order = by_load(chunks);
    if (order.empty()) return false;
    if (count > size) count = align_up(count, size);
    const bool is_gaining = batch_.row_fetch * work.rows < work.ticks;  // on more ranks
    Window best;
    Filling kept{.level = std::numeric_limits<double>::infinity(), .chunks = {}};
    for (; count < config_.num_ranks + size; count += count < size ? 1 : size) {
      const Window window = least_busy(order.front(), count, chunks);
      if (window.count == 0) continue;
      Filling filling = fill(work, window, slots_, batch_, config_);
      if (filling.level < kept.level) {
        kept = std::move(filling);
        best = window;
      }
      if (kept.level <= target || !is_gaining) break;
    }
    MAGI_CHECK(!kept.chunks.empty());
    packing_.spreads.push_back({.work = work,
                                .micro_batch = best.micro_batch,
                                .first = best.first,
                                .chunks = std::move(kept.chunks)});
    slots_.add(packing_.spreads.back());
    return true;
  }

  /// Shares each sample that spreads out anew among its ranks, now that these hold all else.
  void refill() {
    for (Spread& one : packing_.spreads) {
      slots_.remove(one);
      const Window window{.micro_batch = one.micro_batch,
                          .first = one.first,
                          .count = static_cast<std::int32_t>(one.chunks.size())};
      one.chunks = fill(one.work, window, slots_, batch_, config_).chunks;
      slots_.add(one);
    }
  }

  const BatchWork& batch_;
  const BatchConfig& config_;
  std::int32_t num_micro_batches_;
  std::int32_t least_rows_ = std::numeric_limits<std::int32_t>::max();
  Slots slots_;
  Packing packing_;
  std::vector<std::pair<Ticks, std::int64_t>> sums_;
};

}  // namespace

std::optional<Packing> pack(const BatchWork& work, const BatchConfig& config,
                            std::int32_t num_micro_batches, Ticks bound) {
  Packer packer(work, config, num_micro_batches);
  const double least = packer.step_of(bound, work.total / config.num_ranks);
  std::optional<Packing> best;
  for (const Shape& shape : kShapes) {
    std::optional<Packing> made = packer.run(shape, bound);
    if (made && (!best || made->step < best->step)) best = std::move(made);
    if (best && best->step <= kNear * least) break;
  }
  return best;
}

}  // namespace magi::batch
