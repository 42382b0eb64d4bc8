// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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
  /// A list is uneven if its cost would be more than this many times as high with every k tile as
  /// long as the longest of its component: a causal mask gives 2, its middle rows just 3/2, a full
  /// mask 1. CTAs of an uneven list are all over the rows, so items should be short enough that
  /// their rows stay in the cache.
  Ratio uneven_cost{4, 3};
  /// The same bound for several components whose additions have no order: their CTAs work on
  /// different rows from the start.
  Ratio uneven_apart_cost{5, 4};
  /// If dim_qk + dim_v is at most this, no list is uneven: an item's overhead outweighs its steps.
  std::int64_t even_head_dims = 128;
  /// A list is short if it has fewer k tiles x kv heads per CTA than this: whole items do not
  /// balance by themselves, and a search over candidates pays.
  std::int64_t short_list = 8;
  /// A list is long if it has at least this many k tiles x kv heads per CTA: one round of all CTAs
  /// more or less does not matter, and no candidates are tried.
  std::int64_t long_list = 100;
  /// k tiles are alike if the longest is at most this many times the mean of all steps' k tiles.
  Ratio alike_tiles{5, 4};
  /// A mask is narrow if its longest k tile is seen by less than this share of the q tiles.
  Ratio narrow_tile{1, 2};
  /// k tiles that are not narrow are global if they are at most this share of the k tiles and all
  /// others are at most `global_length` times as long. The others are treated as a mask of their
  /// own.
  Ratio global_tiles{1, 16};
  Ratio global_length{1, 4};
  /// A narrow list with fewer additions to a dQ sum on average is ordered even if the caller does
  /// not ask for it: clearing the sums would cost more than waiting for semaphores.
  std::int64_t few_additions = 10;
  /// A list with at most this many steps for each kv head and few additions to a sum is tiny: it is
  /// ordered, whatever its k tiles are like, and the main kernel makes all conversions, which are
  /// cheaper for the host than one more launch. A longer list has too many: one takes the main
  /// kernel as long as some steps.
  std::int64_t tiny_list = 2;

  /// Items of an uneven list have this share of the steps whose q, dout and dQ fill the cache.
  Ratio uneven_item{3, 8};
  /// Items of the tail of an uneven list have at most this many steps, so that the last CTAs end
  /// together.
  std::int64_t uneven_tail = 24;
  /// The search for shorter items tries no fewer steps than this.
  std::int64_t least_item = 4;
  /// Items have at least this many query heads unless the search shortens them: one gains nothing.
  std::int64_t least_item_heads = 2;

  /// An item of an uneven list that walks all that the cache holds spends this share of its time on
  /// cache misses; a shorter item spends less, by the square.
  Ratio cache_misses{1, 8};
  /// A step in the tail of an uneven list costs this share more: all kv heads are walked at once.
  Ratio tail_step{1, 4};
  /// A step of an uneven list costs this share more in sections of more kv heads than needed.
  Ratio wide_section_step{1, 16};
  /// Each doubling of the packed heads adds this share to the time of uneven lists that are not
  /// short: splits of packed heads are coarser.
  Ratio packing_doubling{1, 100};
  /// The same if items walk head by head: with packed heads, CTAs come back to a row later.
  Ratio in_turn_packing{1, 16};

  /// CTAs that meet at an ordered dQ sum begin at least this many steps apart.
  Ratio chain_distance{3, 2};
  /// Ordered even lists of several query heads per kv head have only as many kv heads side by side
  /// as leave this many CTAs to share the rows of each: with fewer CTAs, steps load and add to rows
  /// mostly in DRAM.
  std::int64_t sharing_ctas = 8;
  /// Such lists that are not short have just as many kv heads side by side as let CTAs that meet at
  /// a sum begin within this share of an item: more fill the cache and start hardly earlier.
  Ratio chain_share{1, 32};
  /// If a kv head has one query head, ordered even lists have as many kv heads side by side as let
  /// CTAs that meet at a sum begin this many steps apart.
  Ratio even_chain_distance{9, 2};
  /// An ordered uneven list is nested if its k tiles end this share of the rows that they span
  /// before the last row of their component: a k tile then waits until a longer one before it,
  /// which begins at the last row, has come to its rows.
  Ratio nested_rows{1, 1};
  /// Splits of an ordered uneven list are spread over at least this many kv heads.
  std::int64_t split_chains = 4;
  /// A block of k tiles with splits keeps all CTAs busy for this many rounds of items, so that they
  /// do not wait for slots of the block before.
  std::int64_t block_rounds = 2;

  /// A candidate replaces the best so far if it ends earlier by more than this share.
  Ratio least_gain{1, 100};

  /// The queries of a global k tile are walked in ascending runs of this many q tiles.
  std::int64_t global_run = 16;

  /// A k tile leaves its conversions to the dQ convert kernel if it has fewer steps for each of
  /// them: one conversion takes one to one and a half steps. In a tiny list none is left.
  std::int64_t conversion_distance = 3;
};

}  // namespace magi
