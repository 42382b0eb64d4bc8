// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/backward_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/worklist/backward_problem.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {
namespace {

/// The items of a list in order, by loops instead of divisions.
std::vector<BackwardItem> items_of(const BackwardList& list) {
  std::vector<BackwardItem> items;
  const std::int32_t heads_kv = list.problem.heads_kv;
  const auto visit_block = [&](BackwardItem item, const TileSpan& span, std::int32_t tile_begin) {
    const std::int32_t head_begin = item.kv_head;
    const std::int32_t head_end = std::min(head_begin + span.section_heads, heads_kv);
    const std::int32_t tile_end = std::min(tile_begin + span.block_tiles, span.num_tiles);
    for (item.split = 0; item.split < span.num_splits; ++item.split) {
      for (std::int32_t tile = tile_begin; tile < tile_end; ++tile) {
        item.tile = span.tile_begin + tile;
        for (item.kv_head = head_begin; item.kv_head < head_end; ++item.kv_head) {
          item.num_beside = head_end - item.kv_head;
          items.push_back(item);
        }
      }
    }
  };
  for (std::size_t number = 0; number < list.spans.size(); ++number) {
    const TileSpan& span = list.spans[number];
    for (std::int32_t head = 0; head < heads_kv; head += span.section_heads) {
      for (std::int32_t tile = 0; tile < span.num_tiles; tile += span.block_tiles) {
        visit_block({.span = std::int32_t(number), .kv_head = head}, span, tile);
      }
    }
  }
  return items;
}

/// Walks the items in order: every head group of a k tile once, in the order of the tiles for each
/// group, the splits of a kv head in theirs, and each slot to one of them at a time.
class ItemWalk {
 public:
  explicit ItemWalk(const BackwardList& list)
      : list_(list),
        next_tile_(std::size_t(list.head_groups), -1),
        next_split_(list.tiles.size() * std::size_t(list.problem.heads_kv)),
        users_(std::size_t(list.num_slots()), -1),
        walked_(list.tiles.size() * std::size_t(list.head_groups)) {
    check_spans();
    std::int64_t index = 0;
    for (const BackwardItem& item : items_of(list)) {
      is_whole_ &= item == backward_item(list, index++);
      if (!is_whole_) return;
      walk(item);
    }
    is_whole_ &= index == list.num_items();
  }

  bool is_whole() const {
    return is_whole_ && std::all_of(walked_.begin(), walked_.end(), [](char is) { return is; });
  }

 private:
  void check_spans() {
    is_whole_ &= std::ssize(list_.spans) <= kMaxSpans;
    std::int32_t tile = 0;
    std::int32_t item = 0;
    for (const TileSpan& span : list_.spans) {
      is_whole_ &= span.tile_begin == tile && span.num_tiles > 0;
      is_whole_ &= span.item_begin == item;
      is_whole_ &= span.section_heads >= 1;
      is_whole_ &= span.num_splits == 1 || span.slot_heads >= span.section_heads;
      is_whole_ &= span.block_tiles >= 1 && span.block_tiles <= span.num_tiles;
      is_whole_ &= span.slot_heads <= list_.problem.heads_kv;
      tile += span.num_tiles;
      item += span.num_tiles * span.num_splits * list_.problem.heads_kv;
      is_whole_ &= span.item_end == item;
    }
    is_whole_ &= tile == std::ssize(list_.tiles);
  }

  void walk(const BackwardItem& item) {
    const TileSpan& span = list_.spans[std::size_t(item.span)];
    is_whole_ &= item.tile >= span.tile_begin;
    is_whole_ &= item.tile < span.tile_begin + span.num_tiles;
    const std::int32_t first = (item.kv_head * span.num_splits + item.split) * span.groups_per_item;
    for (std::int32_t group = first; group < first + span.groups_per_item; ++group) {
      std::int32_t& before = next_tile_[std::size_t(group)];
      is_whole_ &= item.tile > before;
      before = item.tile;
      char& is_walked = walked_[std::size_t(item.tile * list_.head_groups + group)];
      is_whole_ &= is_walked == 0;
      is_walked = 1;
    }
    if (span.num_splits > 1) take_slot(item, span);
  }

  void take_slot(const BackwardItem& item, const TileSpan& span) {
    const std::int32_t owner = item.tile * list_.problem.heads_kv + item.kv_head;
    is_whole_ &= item.split == next_split_[std::size_t(owner)]++;
    const SlotUser present{item.tile, item.kv_head};
    std::int32_t& user = users_[std::size_t(slot_of(span, present))];
    if (item.split == 0) {
      const SlotUser before = user_before(span, present);
      const std::int32_t tile = before.tile;
      is_whole_ &= user == (tile < 0 ? -1 : tile * list_.problem.heads_kv + before.kv_head);
      if (!is_whole_) return;
      // Who has been awaited walks, and has all its splits before this item.
      if (user >= 0) is_whole_ &= next_split_[std::size_t(user)] == span.num_splits;
      if (user >= 0)
        is_whole_ &=
            list_.tiles[std::size_t(tile)].record_begin < list_.tiles[std::size_t(tile)].record_end;
      user = owner;
    }
    is_whole_ &= user == owner;
  }

  const BackwardList& list_;
  std::vector<std::int32_t> next_tile_;   ///< of a head group, the last one walked
  std::vector<std::int32_t> next_split_;  ///< of a tile and kv head
  std::vector<std::int32_t> users_;       ///< of a slot: tile and kv head
  std::vector<char> walked_;
  bool is_whole_ = true;
};

TEST(BackwardOrderTest, ItemsWalkEverythingOnceInOrder) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Mask mask = random_mask(random);
    const std::int32_t group = random.between(1, 12);
    const std::int32_t heads_kv = random.between(1, 9);
    BackwardProblem problem = problem_of(mask, heads_kv * group, heads_kv);
    problem.num_ctas = 1 << random.between(0, 8);
    problem.cache_bytes = std::int64_t{1} << random.between(10, 25);
    BackwardChoice choice{.section_heads = random.between(0, 3), .is_ordered = random.chance(50)};
    ASSERT_TRUE(ItemWalk(build_backward_list(problem, mask.slices, random_shape(random), choice))
                    .is_whole());
    choice.heads_per_item = group % 2 == 0 ? group / 2 : 1;
    ASSERT_TRUE(ItemWalk(build_backward_list(problem, mask.slices, random_shape(random), choice))
                    .is_whole());
  }
}

TEST(BackwardOrderTest, WrongItemsAreSeen) {
  const Mask mask{1024, 1024, {band_slice({0, 1024}, {0, 1024}, MaskType::Full)}};
  const BackwardChoice choice{.packed_heads = 1, .heads_per_item = 1, .section_heads = 1};
  const BackwardList good = build_backward_list(problem_of(mask, 32, 8), mask.slices, {}, choice);
  ASSERT_TRUE(ItemWalk(good).is_whole());
  ASSERT_LT(good.spans[0].slot_heads, 8);
  BackwardList fault = good;
  fault.spans[0].section_heads = fault.spans[0].slot_heads + 1;
  EXPECT_FALSE(ItemWalk(fault).is_whole());
  fault = good;
  fault.spans.back().slot_begin -= 1;
  EXPECT_FALSE(ItemWalk(fault).is_whole());
  fault = good;
  fault.spans[0].groups_per_item = 2;
  EXPECT_FALSE(ItemWalk(fault).is_whole());
}

BackwardList list_of(const Mask& mask, bool is_ordered) {
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  return build_backward_list(problem, mask.slices, {}, {.is_ordered = is_ordered});
}

BackwardList causal_list(std::int32_t length, const BackwardChoice& choice) {
  const Mask mask{length, length, {band_slice({0, length}, {0, length}, MaskType::Causal)}};
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  return build_backward_list(problem, mask.slices, {}, choice);
}

TEST(BackwardOrderTest, DearTilesAreCutInPiecesAndCheapOnesComeLast) {
  const BackwardList list = causal_list(32768, {.packed_heads = 1, .is_ordered = false});
  ASSERT_GT(list.spans.size(), 2u);
  EXPECT_EQ(list.spans.front().num_splits, 4);
  EXPECT_EQ(list.spans.front().section_heads, 1);
  EXPECT_EQ(list.spans.back().num_splits, 1);
  EXPECT_EQ(list.spans.back().section_heads, 8);
  for (std::size_t i = 1; i < list.tiles.size(); ++i) {
    EXPECT_GT(list.tiles[i].key_begin, list.tiles[i - 1].key_begin);
  }
}

TEST(BackwardOrderTest, BuffersOfPiecesDoNotGrowWithTheSequence) {
  for (const bool is_ordered : {false, true}) {
    const BackwardChoice choice{.packed_heads = 1, .is_ordered = is_ordered};
    const BackwardList list = causal_list(32768, choice);
    // A fraction of what dK and dV would take in float32.
    EXPECT_LT(3 * list.slot_floats(128, 128), std::int64_t{2} * 32768 * 8 * 128);
    EXPECT_LE(causal_list(1 << 19, choice).num_slots(), 4 * 132 * std::ssize(list.spans));
    EXPECT_TRUE(ItemWalk(list).is_whole());
  }
}

TEST(BackwardOrderTest, TilesThatCostAlikeAreWalkedWhole) {
  for (const bool is_ordered : {false, true}) {
    const Mask mask{16384, 16384, {band_slice({0, 16384}, {0, 16384}, MaskType::Full)}};
    const BackwardList list = list_of(mask, is_ordered);
    for (const TileSpan& span : list.spans) EXPECT_EQ(span.num_splits, 1);
    EXPECT_EQ(list.spans.front().section_heads == 8, is_ordered);
  }
}

TEST(BackwardOrderTest, TheLastRoundOfWholeItemsIsFilledWithPieces) {
  // 2,048 whole items for 132 CTAs would end half a round later.
  const Mask mask{32768, 32768, {band_slice({0, 32768}, {0, 32768}, MaskType::Full)}};
  const BackwardList list = list_of(mask, false);
  ASSERT_EQ(list.spans.size(), 2u);
  EXPECT_EQ(list.spans.front().num_splits, 1);
  EXPECT_GT(list.spans.back().num_splits, 1);
  EXPECT_GT(list.spans.front().num_tiles, 8 * list.spans.back().num_tiles);
  EXPECT_TRUE(ItemWalk(list).is_whole());
}

/// Of so many steps that one counter for each would fill the memory.
TEST(BackwardOrderTest, VeryLongListsAreArrangedInCoarseSteps) {
  constexpr std::int32_t kRows = 1 << 20;
  const Mask mask{kRows, kRows, {band_slice({0, kRows}, {0, kRows}, MaskType::Full)}};
  BackwardProblem problem = problem_of(mask, 64, 1);
  problem.num_ctas = 132;
  const BackwardList list = build_backward_list(problem, mask.slices, {}, {.is_ordered = false});
  EXPECT_TRUE(ItemWalk(list).is_whole());
  EXPECT_GT(list.spans.back().num_splits, list.spans.front().num_splits);
}

TEST(BackwardOrderTest, ChoicesApplyToAllSegments) {
  const BackwardList list = causal_list(
      8192, {.packed_heads = 1, .heads_per_item = 4, .section_heads = 3, .is_ordered = false});
  ASSERT_EQ(list.spans.size(), 2u);
  for (const TileSpan& span : list.spans) {
    EXPECT_EQ(span.num_splits, 2);
    EXPECT_EQ(span.groups_per_item, 4);
  }
  EXPECT_EQ(list.spans.front().section_heads, 3);
}

TEST(BackwardOrderTest, TilesOfADocumentStayTogether) {
  // Long documents first and last, between them one whose tiles are as dear as some of theirs.
  Mask mask{16384, 16384, {}};
  for (const auto& [begin, end] : {std::pair{0, 6144}, {6144, 10240}, {10240, 16384}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  BackwardProblem problem = problem_of(mask, 8, 8);
  problem.num_ctas = 4;
  const BackwardList list = build_backward_list(problem, mask.slices, {});
  ASSERT_EQ(list.spans.size(), 2u);
  const auto document = [](const KeyTileWork& work) {
    return work.key_begin < 6144 ? 0 : work.key_begin < 10240 ? 1 : 2;
  };
  int changes = 0;
  for (std::int32_t i = 1; i < list.spans.front().num_tiles; ++i) {
    const KeyTileWork& before = list.tiles[std::size_t(i) - 1];
    const KeyTileWork& work = list.tiles[std::size_t(i)];
    const bool is_same = document(before) == document(work);
    changes += is_same ? 0 : 1;
    EXPECT_TRUE(!is_same || work.key_begin > before.key_begin);
  }
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(document(list.tiles.front()), 0);
}

TEST(BackwardOrderTest, ShortListsKeepDocumentsTogetherBeforeAShortTail) {
  Mask mask{8192, 8192, {}};
  std::vector<std::int32_t> document_of(8192);
  std::int32_t begin = 0;
  for (const std::int32_t length : {1500, 1000, 500, 250, 1250, 750, 1750, 250, 942}) {
    mask.slices.push_back(
        band_slice({begin, begin + length}, {begin, begin + length}, MaskType::Causal));
    std::fill_n(document_of.begin() + begin, length, std::int32_t(mask.slices.size()));
    begin += length;
  }
  ASSERT_EQ(begin, 8192);
  const BackwardList list = list_of(mask, true);
  EXPECT_EQ(8 % list.spans.front().section_heads, 0);
  const std::int32_t num_before = list.spans.back().tile_begin;
  ASSERT_GT(num_before, 0);
  int changes = 0;
  std::int64_t keys = 0;
  for (std::int32_t i = 0; i < num_before; ++i) {
    const KeyTileWork& work = list.tiles[std::size_t(i)];
    keys += work.key_end - work.key_begin;
    if (i == 0) continue;
    const KeyTileWork& before = list.tiles[std::size_t(i) - 1];
    changes +=
        document_of[std::size_t(before.key_begin)] != document_of[std::size_t(work.key_begin)];
  }
  EXPECT_LT(changes, std::ssize(mask.slices));
  EXPECT_GT(2 * keys, 8192);
}

TEST(BackwardOrderTest, WindowsWalkHeadByHeadInTurn) {
  const Mask window{16384, 16384, {{0, 16384, 0, 16384, -1023, 0}}};
  for (const bool is_ordered : {false, true}) {
    const BackwardList list = list_of(window, is_ordered);
    EXPECT_TRUE(list.is_group_first);
    EXPECT_TRUE(list.is_ordered);
    EXPECT_LT(list.spans.front().section_heads, 8);
  }
}

TEST(BackwardOrderTest, DenseMasksWalkHeadsTogether) {
  const Mask causal{8192, 8192, {band_slice({0, 8192}, {0, 8192}, MaskType::Causal)}};
  for (const bool is_ordered : {false, true}) {
    const BackwardList list = list_of(causal, is_ordered);
    EXPECT_FALSE(list.is_group_first);
    EXPECT_EQ(list.is_ordered, is_ordered);
  }
}

TEST(BackwardOrderTest, SplitsHeadsWhereItemsAreFew) {
  const Mask mask{512, 512, {band_slice({0, 512}, {0, 512}, MaskType::Full)}};
  BackwardProblem problem = problem_of(mask, 16, 2);
  const BackwardList whole = build_backward_list(problem, mask.slices, {});
  ASSERT_EQ(whole.spans.size(), 1u);
  EXPECT_EQ(whole.spans.front().num_splits, 1);
  EXPECT_EQ(whole.num_slots(), 0);
  problem.num_ctas = 64;
  const BackwardList list = build_backward_list(problem, mask.slices, {}, {.packed_heads = 1});
  ASSERT_EQ(list.spans.size(), 1u);
  EXPECT_EQ(list.spans.front().num_splits, 4);
  EXPECT_EQ(list.spans.front().groups_per_item, 2);
  EXPECT_EQ(list.num_items(), 32);
  EXPECT_EQ(list.slot_floats(128, 128), 8 * 2 * 128 * 128);
  EXPECT_EQ(list.num_counters(), 16 * (8 + 1) + 2 * 4 * 2 + 1);
  const BackwardChoice choice{.packed_heads = 2, .heads_per_item = 4};
  EXPECT_EQ(build_backward_list(problem, mask.slices, {}, choice).spans.front().num_splits, 2);
}

TEST(BackwardOrderTest, FewItemsAreCutAlike) {
  // Dear tiles in many pieces before cheap whole ones would end later: 93 steps instead of 74.
  const Mask mask{2048, 2048, {band_slice({0, 2048}, {0, 2048}, MaskType::Causal)}};
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  problem.dim_qk = problem.dim_v = 64;
  const BackwardList list = build_backward_list(problem, mask.slices, kWideShape,
                                                {.packed_heads = 1, .is_ordered = false});
  for (const TileSpan& span : list.spans) EXPECT_EQ(span.num_splits, 2);
  EXPECT_TRUE(ItemWalk(list).is_whole());
}

}  // namespace
}  // namespace magi::test
