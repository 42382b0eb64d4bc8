// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/worklist/backward_list.hpp"
#include "kernels/worklist/forward_list.hpp"
#include "kernels/worklist/query_run.hpp"
#include "kernels/worklist/schedule_cost.hpp"
#include "kernels/worklist/split_list.hpp"
#include "kernels/worklist/tile_run.hpp"

// What schedules make of masks, for 64:8 heads of 128 on one GPU: how many tiles each query head
// walks, how many of them are masked, how many there would be with a record for every slice, and
// how many hold a visible pair; and how long the host takes to make a schedule. Of the backward
// also the share of time in which multiprocessors step, by a model that walks the schedule.
// list_bench [--out FILE] --masks FILE, which bench/attention_masks.py writes
namespace {

using magi::BandSlice;
using magi::Mask;
using magi::Range;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kHeads = 64;
constexpr std::int32_t kKvHeads = 8;
constexpr std::int32_t kRepeats = 9;

/// Tiles of one query head, in tiles of 128 rows x 128 keys (backward: of 64 rows).
struct TileCount {
  double of_slices = 0;  ///< with a record for every slice
  double walked = 0;
  double masked = 0;    ///< of those walked
  double occupied = 0;  ///< the fewest that hold all visible pairs of their rows (keys)
};

/// The parts that slices leave on rows.
std::vector<BandSlice> parts_of_rows(const Mask& mask, Range rows) {
  std::vector<BandSlice> parts;
  for (const BandSlice& slice : mask.slices) {
    const BandSlice part = shrink(cut_q(slice, rows));
    if (part.q0 < part.q1) parts.push_back(part);
  }
  return parts;
}

/// The fewest tiles of `width` keys that hold all keys of the parts.
std::int64_t fewest_tiles(std::vector<BandSlice> parts, std::int32_t width) {
  std::sort(parts.begin(), parts.end(),
            [](const BandSlice& a, const BandSlice& b) { return a.k0 < b.k0; });
  std::int64_t count = 0;
  std::int32_t covered = 0;
  for (const BandSlice& part : parts) {
    const std::int32_t begin = std::max(part.k0, covered);
    if (begin >= part.k1) continue;
    const std::int32_t tiles = (part.k1 - begin - 1) / width + 1;
    count += tiles;
    covered = begin + tiles * width;
  }
  return count;
}

TileCount count_forward(const magi::ForwardList& list, const Mask& mask) {
  TileCount count;
  const double unit = 1.0 / list.packed_heads;
  for (const magi::TileWork& work : list.tiles) {
    const std::int32_t begin = work.tile * list.tile_tokens;
    const Range rows{begin, std::min(begin + list.tile_tokens, mask.rows_q)};
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      const auto& band = list.records[static_cast<std::size_t>(i)].band;
      const magi::TileRun run = magi::tile_run(band, rows.begin, rows.end, list.shape.keys);
      count.walked += unit * run.num_tiles;
      count.masked += unit * (run.num_tiles - std::max(0, run.full_end - run.full_begin));
    }
    const std::vector<BandSlice> parts = parts_of_rows(mask, rows);
    count.occupied += unit * double(fewest_tiles(parts, list.shape.keys));
    for (const BandSlice& part : parts) {
      count.of_slices +=
          unit * magi::tile_run(part, rows.begin, rows.end, list.shape.keys).num_tiles;
    }
  }
  return count;
}

/// Adds the steps of a k tile, whose q tiles are of 2^shift tokens.
void count_k_tile(TileCount& count, const magi::BackwardList& list, const Mask& mask,
                  const magi::KeyTile& tile) {
  const int shift = std::countr_zero(static_cast<unsigned>(list.tile_tokens));
  const double unit = 1.0 / list.packed_heads;
  const auto run_of = [&](const BandSlice& band) {
    return magi::query_run(band, tile.key_begin, list.shape.keys, shift);
  };
  for (std::int32_t i = tile.record_begin; i < tile.record_end; ++i) {
    const magi::QueryRun run = run_of(list.records[static_cast<std::size_t>(i)].band);
    const std::int32_t steps = run.tile_end - run.tile_begin;
    count.walked += unit * steps;
    count.masked += unit * (steps - std::max(0, run.full_end - run.full_begin));
  }
  std::set<std::int32_t> seen;
  for (const BandSlice& slice : mask.slices) {
    const BandSlice part = shrink(cut_k(slice, {tile.key_begin, tile.key_end}));
    if (part.q0 >= part.q1) continue;
    const magi::QueryRun run = run_of(part);
    count.of_slices += unit * (run.tile_end - run.tile_begin);
    for (std::int32_t q = run.tile_begin; q < run.tile_end; ++q) seen.insert(q);
  }
  count.occupied += unit * double(seen.size());
}

TileCount count_backward(const magi::BackwardList& list, const Mask& mask) {
  TileCount count;
  for (const magi::KeyTile& tile : list.tiles) count_k_tile(count, list, mask, tile);
  return count;
}

/// Walks a schedule of the backward step by step. A step takes 1; an item and the handing on of a
/// split take what the cost model says; an ordered addition to a sum waits for the one before it,
/// which holds it for half a step more. Items are handed out in order and wait for earlier ones
/// only, so one walk in that order finds all times.
class BackwardWalk {
 public:
  explicit BackwardWalk(const magi::BackwardList& list)
      : list_(list), added_(std::size_t(list.head_groups) * std::size_t(list.num_semaphores())) {}

  /// The share of time in which CTAs step.
  double busy_share() {
    for (std::int32_t i = 0; i < list_.problem.num_ctas; ++i) free_.push(0);
    for (std::int64_t i = 0; i < list_.num_items(); ++i) {
      time_ = free_.top() + list_.shape.overhead;
      free_.pop();
      walk(list_.item(i));
      free_.push(time_);
      end_ = std::max(end_, time_);
    }
    return num_steps_ / (end_ * list_.problem.num_ctas);
  }

 private:
  void walk(const magi::BackwardItem& item) {
    const magi::TileSpan& span = list_.spans[static_cast<std::size_t>(item.span)];
    const std::int32_t groups = span.groups_per_item;
    const std::int32_t first = (item.kv_head * span.num_splits + item.split) * groups;
    const std::int32_t rounds = list_.is_group_first ? groups : 1;
    for (std::int32_t round = 0; round < rounds; ++round) {
      walk_tile(list_.tiles[static_cast<std::size_t>(item.tile)],
                list_.is_group_first ? Range{first + round, first + round + 1}
                                     : Range{first, first + groups});
    }
    if (span.num_splits == 1) return;
    double& before = split_ended_[{item.tile, item.kv_head}];
    before = time_ = std::max(time_, before) + list_.shape.split_cost;
  }

  void walk_tile(const magi::KeyTile& tile, Range groups) {
    const int shift = std::countr_zero(static_cast<unsigned>(list_.tile_tokens));
    for (std::int32_t i = tile.record_begin; i < tile.record_end; ++i) {
      const magi::KeyRecord& record = list_.records[static_cast<std::size_t>(i)];
      const magi::QueryRun run =
          magi::query_run(record.band, tile.key_begin, list_.shape.keys, shift);
      const std::int32_t component =
          list_.semaphore_runs[static_cast<std::size_t>(record.run_begin)].component;
      for (std::int32_t q = run.tile_end; q-- > run.tile_begin;) {
        for (std::int32_t group = groups.begin; group < groups.end; ++group)
          step(group, q + component);
      }
    }
  }

  void step(std::int32_t group, std::int32_t semaphore) {
    const auto sum =
        std::size_t(group) * std::size_t(list_.num_semaphores()) + std::size_t(semaphore);
    ++num_steps_;
    ++time_;
    if (!list_.is_ordered) return;
    time_ = std::max(time_, added_[sum]);
    added_[sum] = time_ + 0.5;
  }

  const magi::BackwardList& list_;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_;  ///< of each CTA
  std::vector<double> added_;  ///< when a semaphore is passed on
  std::map<std::pair<std::int32_t, std::int32_t>, double> split_ended_;  ///< by k tile and kv head
  double time_ = 0;
  double end_ = 0;
  double num_steps_ = 0;
};

/// Least time of a call. [ms]
template <typename Body>
double least_ms(const Body& body) {
  double least = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = Clock::now();
    body();
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    least = std::min(least, took.count());
  }
  return least;
}

nlohmann::json row_of(const TileCount& count, std::int32_t packed_heads, double ms) {
  return {{"packed_heads", packed_heads}, {"tiles_of_slices", count.of_slices},
          {"walked", count.walked},       {"masked", count.masked},
          {"occupied", count.occupied},   {"ms", ms}};
}

nlohmann::json forward_row(const Mask& mask) {
  const magi::ForwardProblem problem{
      .rows_q = mask.rows_q, .rows_k = mask.rows_k, .heads_q = kHeads, .heads_kv = kKvHeads};
  magi::ForwardList list = magi::build_forward_list(problem, mask.slices, {});
  const TileCount count = count_forward(list, mask);
  const double ms = least_ms([&] {
    list = magi::build_forward_list(problem, mask.slices, {});
    magi::split_long_tiles(list, {});
  });
  return row_of(count, list.packed_heads, ms);
}

nlohmann::json backward_row(const Mask& mask, bool is_deterministic) {
  const magi::BackwardProblem problem{
      .rows_q = mask.rows_q, .rows_k = mask.rows_k, .heads_q = kHeads, .heads_kv = kKvHeads};
  const magi::BackwardChoice choice{.is_deterministic = is_deterministic};
  magi::BackwardList list = magi::build_backward_list(problem, mask.slices, {}, choice);
  const TileCount count = count_backward(list, mask);
  const double ms =
      least_ms([&] { list = magi::build_backward_list(problem, mask.slices, {}, choice); });
  nlohmann::json row = row_of(count, list.packed_heads, ms);
  row["busy_share"] = BackwardWalk(list).busy_share();
  row["is_ordered"] = list.is_ordered;
  row["is_converting"] = list.is_converting;
  row["items"] = list.num_items();
  for (const magi::TileSpan& span : list.spans) {
    row["spans"].push_back({{"tiles", span.num_tiles},
                            {"splits", span.num_splits},
                            {"groups_per_item", span.groups_per_item},
                            {"section_heads", span.section_heads}});
  }
  return row;
}

Mask mask_of(const nlohmann::json& source) {
  Mask mask{source.at("rows"), source.at("rows"), {}};
  for (const auto& s : source.at("slices")) {
    mask.slices.push_back({s.at(0), s.at(1), s.at(2), s.at(3), s.at(4), s.at(5)});
  }
  return mask;
}

struct Options {
  std::string out;
  std::string masks;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if ((name != "--out" && name != "--masks") || i + 1 == argc) {
      throw std::runtime_error("option " + name + "; allowed: --out FILE, --masks FILE");
    }
    (name == "--out" ? options.out : options.masks) = argv[i + 1];
  }
  return options;
}

int run(const Options& options) {
  nlohmann::json rows;
  const auto masks = nlohmann::json::parse(std::ifstream(options.masks));
  for (const auto& [name, source] : masks.items()) {
    const Mask mask = mask_of(source);
    rows[name] = {{"rows", mask.rows_q},
                  {"slices", mask.slices.size()},
                  {"forward", forward_row(mask)},
                  {"backward", backward_row(mask, false)},
                  {"backward_deterministic", backward_row(mask, true)}};
  }
  if (options.out.empty()) {
    std::cout << rows.dump(1) << '\n';
  } else {
    std::ofstream(options.out) << rows.dump(1) << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "list_bench: " << error.what() << '\n';
    return 1;
  }
}
