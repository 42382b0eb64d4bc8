// SPDX-License-Identifier: Apache-2.0
#include "batch/pack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "batch/fill.hpp"
#include "plan/placement/lightest_rank.hpp"

namespace magi::batch {
namespace {

constexpr double kNever = 1e30;

/// A rule for which samples spread, and over how many ranks at least. By time: samples longer than
/// `threshold` times the bound spread over the fewest ranks on which they end at `level` times the
/// bound. By rows: samples with more than `rows` of a rank's rows spread over the fewest ranks with
/// no more each, or over that number rounded up to a power of two.
struct Shape {
  double level = 1.0;
  double threshold = 1.0;
  double rows = 0.0;  ///< 0: by time
  bool is_power = false;
};
/// Samples on few ranks fetch least; on many they leave each rank room for short ones.
constexpr std::array kShapes = {Shape{1.0, 1.0},
                                Shape{0.95, 1.0},
                                Shape{0.85, 1.0},
                                Shape{0.7, 1.0},
                                Shape{0.8, 0.8},
                                Shape{1.0, kNever},
                                Shape{.rows = 1.0, .is_power = true},
                                Shape{.rows = 0.5, .is_power = true},
                                Shape{.rows = 0.25, .is_power = true},
                                Shape{.rows = 0.7},
                                Shape{.rows = 0.5},
                                Shape{.rows = 0.35},
                                Shape{.rows = 0.25}};
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
      return static_cast<double>(work.ticks) > shape.threshold * limit || work.rows > room_rows();
    };
    const auto num_long = static_cast<std::size_t>(std::ranges::count_if(batch_.samples, is_long));
    if (shape.threshold < kNever && num_long * slots_.size() > kMostLooks) return std::nullopt;
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
          update(slot_of(made.micro_batch, made.first) + i);
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

  std::size_t slot_of(std::int32_t micro_batch, std::int32_t rank) const {
    return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(config_.num_ranks) +
           static_cast<std::size_t>(rank);
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
      const auto& before = sums_[slot_of(micro_batch, first)];
      const auto& after =
          sums_[slot_of(micro_batch, first) + static_cast<std::size_t>(end - first)];
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
      const auto& before = sums_[slot_of(m, 0)];
      const auto& after = sums_[slot_of(m + 1, 0)];
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
    auto count = static_cast<std::uint32_t>(std::ceil(work.rows / (shape.rows * room_rows())));
    if (shape.is_power) count = std::bit_ceil(count);
    return static_cast<std::int32_t>(
        std::min(count, static_cast<std::uint32_t>(config_.num_ranks)));
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
