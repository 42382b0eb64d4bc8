// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace magi {

/// A share or a bound as a fraction, so that all sums stay integers.
struct Ratio {
  std::int64_t numerator = 1;
  std::int64_t denominator = 1;

  /// The share of a value, rounded down.
  constexpr std::int64_t of(std::int64_t value) const { return value * numerator / denominator; }
  /// Whether `part` is more than the share of `whole`, without rounding.
  constexpr bool is_exceeded(std::int64_t part, std::int64_t whole) const {
    return denominator * part > numerator * whole;
  }
  /// Whether `part` is less than the share of `whole`, without rounding.
  constexpr bool is_undercut(std::int64_t part, std::int64_t whole) const {
    return denominator * part < numerator * whole;
  }
};

/// Every measured constant by which the schedule of a backward list is chosen (H200, 64:8 heads;
/// docs/log/backward.md has the measurements). A step is one q tile of one head group.
struct SchedulePolicy {
  /// A list is uneven if its cost, were every k tile as long as the longest of its component, is
  /// more than so many times the true cost: a causal mask gives 2, a full one 1. Then the CTAs are
  /// all over the rows, and what an item walks should be little enough to stay in the cache. The
  /// middle rows of a causal mask give just 3/2.
  Ratio uneven_cost{4, 3};
  /// The same bound where there are several components and additions have no order: their CTAs are
  /// apart from the start.
  Ratio uneven_apart_cost{5, 4};
  /// Up to so many dim_qk + dim_v no list is uneven: steps are short beside an item's own costs.
  std::int64_t even_head_dims = 128;
  /// A list is short if it has fewer k tiles x kv heads per CTA: whole items do not balance by
  /// themselves, and a search over candidates pays.
  std::int64_t short_list = 8;
  /// A list is long from so many k tiles x kv heads per CTA on: a round of all CTAs more or less
  /// is nothing, and no candidates are tried.
  std::int64_t long_list = 100;
  /// The longest k tile is at most so many times the mean where all k tiles count as alike.
  Ratio alike_tiles{5, 4};
  /// A mask is narrow if its longest k tile is seen by less than this share of the q tiles.
  Ratio narrow_tile{1, 2};
  /// k tiles that are not narrow are global if they are at most this share of the k tiles and all
  /// others are at most `global_length` times as long. The others are treated as a mask of their
  /// own.
  Ratio global_tiles{1, 16};
  Ratio global_length{1, 4};
  /// A narrow list with fewer additions to a dQ sum, on average, is ordered even where nobody asks
  /// for it: clearing the sums would cost more than waiting for semaphores.
  std::int64_t few_additions = 10;
  /// A list of at most so many steps for each kv head, with few additions to a sum, is tiny: it is
  /// ordered, whatever its k tiles are like, and leaves no conversions, as to launch their kernel
  /// would take the host longer. A conversion takes the main kernel as long as some steps, so more
  /// of them one behind the other would cost more than they save.
  std::int64_t tiny_list = 2;

  /// Items of an uneven list have this share of the steps whose q, dout and dQ fill the cache.
  Ratio uneven_item{3, 8};
  /// Items of the tail of an uneven list have at most so many steps, so that the last CTAs end
  /// together.
  std::int64_t uneven_tail = 24;
  /// The search for shorter items goes down to so many steps.
  std::int64_t least_item = 4;
  /// An item has so many query heads at least, where items are not cut short: one gains nothing.
  std::int64_t least_item_heads = 2;

  /// An item of an uneven list that walks all that the cache holds spends this share of its time on
  /// cache misses; a shorter item spends less, by the square.
  Ratio cache_misses{1, 8};
  /// A step in the tail of an uneven list costs this share more: all kv heads are walked at once.
  Ratio tail_step{1, 4};
  /// A step of an uneven list costs this share more in sections of more kv heads than need be.
  Ratio wide_section_step{1, 16};
  /// Each doubling of the packed heads adds this share to the time of uneven lists that are not
  /// short: splits of packed heads are coarser.
  Ratio packing_doubling{1, 100};
  /// The same if items walk head by head: with packed heads, CTAs come back to a row later.
  Ratio in_turn_packing{1, 16};

  /// CTAs that meet at an ordered dQ sum can begin only so many steps apart.
  Ratio chain_distance{3, 2};
  /// Ordered even lists of several query heads per kv head have at most so many kv heads side by
  /// side that this many CTAs share the rows of each: with fewer, most of what a step loads and
  /// adds to comes from DRAM.
  std::int64_t sharing_ctas = 8;
  /// Those that are not short have only so many that CTAs which meet at a sum begin within this
  /// share of an item: fewer stay in the cache, and more would begin earlier by next to nothing.
  Ratio chain_share{1, 32};
  /// If a kv head has one query head, those lists have so many kv heads side by side that CTAs
  /// that meet at a sum could begin this many steps apart.
  Ratio even_chain_distance{9, 2};
  /// An ordered uneven list is nested if its k tiles end so many rows before the last row of their
  /// component, of the rows that they span: a k tile that comes after a longer one waits until that
  /// one, which begins at the end, has come to its rows.
  Ratio nested_rows{1, 1};
  /// Splits of an ordered uneven list are spread over so many kv heads at least.
  std::int64_t split_chains = 4;
  /// A block of k tiles with splits keeps all CTAs busy for so many rounds of items, so that they
  /// stay away from the slots of the block before.
  std::int64_t block_rounds = 2;

  /// A candidate replaces the best so far if it is done earlier by more than this share.
  Ratio least_gain{1, 100};

  /// The queries of a global k tile are walked in runs of so many q tiles, ascending.
  std::int64_t global_run = 16;

  /// A k tile leaves its conversions to the dQ convert kernel if it has fewer steps for each of
  /// them: one conversion takes one to one and a half steps. In a tiny list none is left.
  std::int64_t conversion_distance = 3;
};

/// One line per constant: name = value unit.
std::string describe(const SchedulePolicy& policy);

}  // namespace magi
