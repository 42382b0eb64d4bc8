// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/backward_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "kernels/worklist/query_run.hpp"
#include "magi/error.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {
namespace {

BackwardProblem problem_of(const Mask& mask, std::int32_t heads_q, std::int32_t heads_kv) {
  return {.rows_q = mask.rows_q,
          .rows_k = mask.rows_k,
          .heads_q = heads_q,
          .heads_kv = heads_kv,
          .num_ctas = 8};
}

bool is_left(const BackwardList& list, std::int32_t row) {
  const std::vector<std::int32_t>& tiles = list.left_tiles;
  return std::binary_search(tiles.begin(), tiles.end(), row / list.tile_tokens);
}

/// What kernels that walk the list would do, and whether its turns are in order.
class Expansion {
 public:
  explicit Expansion(const BackwardList& list)
      : list_(list),
        pairs_(std::size_t(list.problem.rows_q) * std::size_t(list.problem.rows_k)),
        key_owners_(std::size_t(list.problem.rows_k)),
        next_turn_(std::size_t(list.num_q_tiles() + list.num_islands)),
        writers_(std::size_t(list.problem.rows_q), -1),
        islands_(std::size_t(list.num_q_tiles())) {
    for (const KeyTileWork& work : list.tiles) walk(work);
  }

  bool is_of(const Mask& mask) const {
    const bool is_owned_once =
        std::all_of(key_owners_.begin(), key_owners_.end(), [](int owners) { return owners == 1; });
    return is_whole_ && is_owned_once && pairs_ == expand(mask) && islands() == list_.islands &&
           has_right_ends();
  }

 private:
  /// Whether each sum that is not left has ended for all its islands, and no other.
  bool has_right_ends() const {
    for (std::int32_t tile = 0; tile < list_.num_q_tiles(); ++tile) {
      const bool is_ended = list_.is_finishing && !is_left(list_, tile * list_.tile_tokens);
      const std::set<std::int32_t>& islands = islands_[std::size_t(tile)];
      if (is_ended && islands.empty()) return false;
      for (const std::int32_t island : islands) {
        if ((next_turn_[std::size_t(tile + island)] < 0) != is_ended) return false;
      }
    }
    return true;
  }

  void walk(const KeyTileWork& work) {
    for (std::int32_t key = work.key_begin; key < work.key_end; ++key) {
      ++key_owners_[std::size_t(key)];
    }
    is_whole_ &= work.key_begin < work.key_end;
    is_whole_ &= work.key_end - work.key_begin <= list_.shape.keys;
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      walk_record(work, list_.records[std::size_t(i)]);
    }
  }

  void walk_record(const KeyTileWork& work, const KeyRecord& record) {
    const int shift = std::countr_zero(std::uint32_t(list_.tile_tokens));
    const QueryRun run = query_run(record.band, work.key_begin, list_.shape.keys, shift);
    is_whole_ &= record.band.k0 >= work.key_begin && record.band.k1 <= work.key_end;
    for (std::int32_t tile = run.tile_begin; tile < run.tile_end; ++tile) {
      const TurnRun turn = turn_of(record, tile);
      is_whole_ &= turn.island >= 0 && turn.island < list_.num_islands;
      if (!is_whole_) return;
      std::int32_t& next = next_turn_[std::size_t(tile + turn.island)];
      is_whole_ &= turn.turn == next;
      // After the last one nobody has a turn.
      next = turn.is_last != 0 ? -1 : next + 1;
      islands_[std::size_t(tile)].insert(turn.island);
      const bool is_full = tile >= run.full_begin && tile < run.full_end;
      count(work, record.band, tile, is_full);
      take_rows(record.band, tile, turn.island);
    }
  }

  TurnRun turn_of(const KeyRecord& record, std::int32_t tile) const {
    TurnRun found{.turn = -1, .island = -1};
    for (std::int32_t i = record.turn_begin; i < record.turn_end; ++i) {
      const TurnRun& run = list_.turns[std::size_t(i)];
      if (run.q_tile <= tile) found = run;
    }
    return found;
  }

  /// No row may be written by two islands.
  void take_rows(const BandSlice& band, std::int32_t tile, std::int32_t island) {
    const std::int32_t begin = tile * list_.tile_tokens;
    for (std::int32_t row = std::max(begin, band.q0);
         row < std::min(begin + list_.tile_tokens, band.q1); ++row) {
      std::int32_t& writer = writers_[std::size_t(row)];
      is_whole_ &= writer < 0 || writer == island;
      writer = island;
    }
  }

  std::vector<std::int32_t> islands() const {
    std::vector<std::int32_t> counts;
    for (const auto& tile : islands_) counts.push_back(std::int32_t(tile.size()));
    return counts;
  }

  void count(const KeyTileWork& work, const BandSlice& band, std::int32_t tile, bool is_full) {
    const std::int32_t begin = tile * list_.tile_tokens;
    const std::int32_t end = begin + list_.tile_tokens;
    if (is_full &&
        (end > list_.problem.rows_q || work.key_end - work.key_begin != list_.shape.keys)) {
      is_whole_ = false;
    }
    for (std::int32_t row = begin; row < std::min(end, list_.problem.rows_q); ++row) {
      const Range seen = visible_keys(band, row);
      for (std::int32_t key = work.key_begin; key < work.key_end; ++key) {
        const bool is_counted = is_full || (key >= seen.begin && key < seen.end);
        if (is_counted) ++pair(row, key);
      }
    }
  }

  std::uint16_t& pair(std::int32_t row, std::int32_t key) {
    return pairs_[std::size_t(row) * std::size_t(list_.problem.rows_k) + std::size_t(key)];
  }

  const BackwardList& list_;
  std::vector<std::uint16_t> pairs_;
  std::vector<int> key_owners_;
  std::vector<std::int32_t> next_turn_;          ///< of q tile + island
  std::vector<std::int32_t> writers_;            ///< per row, the island that writes it
  std::vector<std::set<std::int32_t>> islands_;  ///< per q tile
  bool is_whole_ = true;
};

bool is_list_of(const BackwardList& list, const Mask& mask) { return Expansion(list).is_of(mask); }

BackwardTileShape random_shape(RandomStream& random) {
  return {.rows = 16 << random.between(0, 3),
          .keys = 8 * random.between(1, 10),
          .overhead = random.between(0, 5)};
}

TEST(BackwardListTest, CountsEveryPairAsOftenAsTheMaskInTurn) {
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Mask mask = random_mask(random);
    const BackwardTileShape shape = random_shape(random);
    const std::int32_t group = 1 << random.between(0, 3);
    const BackwardProblem problem = problem_of(mask, 2 * group, 2);
    const std::int32_t packed_heads = 1 << random.between(0, group == 1 ? 0 : 1);
    ASSERT_TRUE(is_list_of(
        build_backward_list(problem, mask.slices, shape, {.packed_heads = packed_heads}), mask));
    ASSERT_TRUE(is_list_of(build_backward_list(problem, mask.slices, shape), mask));
  }
}

/// Of head dims up to 64.
constexpr BackwardTileShape kWideShape{.rows = 128, .overhead = 2, .piece_cost = 1};

TEST(BackwardListTest, HoldsForTheKernelsOwnTiles) {
  RandomMaskOptions options;
  options.max_rows_q = 600;
  options.max_rows_k = 600;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Mask mask = random_mask(random, options);
    for (const BackwardTileShape& shape : {BackwardTileShape{}, kWideShape}) {
      for (const std::int32_t packed_heads : {1, 8}) {
        ASSERT_TRUE(is_list_of(build_backward_list(problem_of(mask, 8, 1), mask.slices, shape,
                                                   {.packed_heads = packed_heads}),
                               mask));
      }
    }
  }
}

TEST(BackwardListTest, PlantedFaultsAreSeen) {
  const Mask mask{300, 300, {band_slice({0, 300}, {0, 300}, MaskType::Causal)}};
  const BackwardList good = build_backward_list(problem_of(mask, 2, 1), mask.slices, {});
  ASSERT_TRUE(is_list_of(good, mask));
  BackwardList fault = good;
  fault.records[1].band.d_max += 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.records[0].band.q1 -= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.turns[1].turn += 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.islands[2] += 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.turns[1].is_last ^= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tiles[0].record_end -= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tiles[0] = fault.tiles[1];
  EXPECT_FALSE(is_list_of(fault, mask));
}

TEST(BackwardListTest, WhoAddsLastMakesRowsWhereItHasTime) {
  // Of a window; rows without keys are left.
  Mask mask{1091, 1091, {{.q0 = 0, .q1 = 1051, .k0 = 0, .k1 = 1051, .d_min = -256, .d_max = 0}}};
  for (const std::int32_t packed_heads : {1, 2, 16}) {
    const BackwardList list = build_backward_list(problem_of(mask, 16, 1), mask.slices, {},
                                                  {.packed_heads = packed_heads});
    ASSERT_TRUE(is_list_of(list, mask));
    EXPECT_TRUE(list.is_finishing);
    EXPECT_FALSE(is_left(list, 500));
    EXPECT_TRUE(is_left(list, 1090));
  }
  // Of documents of one k tile each step ends a sum.
  mask.slices.clear();
  for (std::int32_t row = 0; row < 1024; row += 128) {
    mask.slices.push_back(band_slice({row, row + 128}, {row, row + 128}, MaskType::Full));
  }
  const BackwardList list = build_backward_list(problem_of(mask, 1, 1), mask.slices, {});
  ASSERT_TRUE(is_list_of(list, mask));
  EXPECT_FALSE(list.is_finishing);
}

TEST(BackwardListTest, CutsTilesWhereDocumentsBegin) {
  Mask mask{1000, 1000, {}};
  for (const auto& [begin, end] : {std::pair{0, 200}, {200, 330}, {330, 1000}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  const BackwardList list = build_backward_list(problem_of(mask, 8, 1), mask.slices, {});
  for (const KeyTileWork& work : list.tiles) EXPECT_EQ(work.record_end - work.record_begin, 1);
  EXPECT_GT(list.packed_heads, 1);
  // Where a cut for each of many slices would leave nothing but crumbs, there is none.
  mask.slices.clear();
  for (std::int32_t row = 0; row < 1000; ++row) {
    mask.slices.push_back({.q0 = row, .q1 = row + 1, .k0 = row, .k1 = 1000});
  }
  EXPECT_EQ(build_backward_list(problem_of(mask, 8, 1), mask.slices, {}).tiles.size(), 8u);
}

TEST(BackwardListTest, DenseMasksNeedFewTurnsAndDearTilesComeFirst) {
  const Mask mask{4096, 4096, {band_slice({0, 4096}, {0, 4096}, MaskType::Causal)}};
  const BackwardList list =
      build_backward_list(problem_of(mask, 8, 1), mask.slices, {}, {.packed_heads = 1});
  ASSERT_EQ(list.tiles.size(), 32u);
  EXPECT_EQ(list.turns.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(list.tiles[i].key_begin, std::int32_t(128 * i));
    EXPECT_EQ(list.turns[i], (TurnRun{.q_tile = std::int32_t(2 * i), .turn = std::int32_t(i)}));
  }
}

TEST(BackwardListTest, RowsOfDifferentDocumentsAddInAnyOrder) {
  Mask mask{256, 256, {}};
  for (const auto& [begin, end] : {std::pair{0, 100}, {100, 110}, {110, 192}, {192, 256}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  const BackwardList list =
      build_backward_list(problem_of(mask, 1, 1), mask.slices, {}, {.packed_heads = 1});
  EXPECT_EQ(list.num_islands, 4);
  EXPECT_EQ(list.islands, (std::vector<std::int32_t>{1, 3, 1, 1}));
}

/// Walks the items in order: every head group of a k tile once, in the order of the tiles for each
/// group, the pieces of a kv head in theirs, and each slot to one of them at a time.
class ItemWalk {
 public:
  explicit ItemWalk(const BackwardList& list)
      : list_(list),
        next_tile_(std::size_t(list.head_groups), -1),
        next_piece_(list.tiles.size() * std::size_t(list.problem.heads_kv)),
        users_(std::size_t(list.num_slots()), -1),
        walked_(list.tiles.size() * std::size_t(list.head_groups)) {
    check_segments();
    std::int64_t index = 0;
    for_each_item(list, [&](const BackwardItem& item) {
      if (!is_whole_) return;
      is_whole_ &= item == backward_item(list, index++);
      if (is_whole_) walk(item);
    });
    is_whole_ &= index == list.num_items();
  }

  bool is_whole() const {
    return is_whole_ && std::all_of(walked_.begin(), walked_.end(), [](char is) { return is; });
  }

 private:
  void check_segments() {
    is_whole_ &= std::ssize(list_.segments) <= kMaxSegments;
    std::int32_t tile = 0;
    std::int32_t item = 0;
    for (const BackwardSegment& segment : list_.segments) {
      is_whole_ &= segment.tile_begin == tile && segment.num_tiles > 0;
      is_whole_ &= segment.item_begin == item;
      is_whole_ &= segment.section_heads >= 1;
      is_whole_ &= segment.num_pieces == 1 || segment.slot_heads >= segment.section_heads;
      is_whole_ &= segment.block_tiles >= 1 && segment.block_tiles <= segment.num_tiles;
      is_whole_ &= segment.slot_heads <= list_.problem.heads_kv;
      tile += segment.num_tiles;
      item += segment.num_tiles * segment.num_pieces * list_.problem.heads_kv;
      is_whole_ &= segment.item_end == item;
    }
    is_whole_ &= tile == std::ssize(list_.tiles);
  }

  void walk(const BackwardItem& item) {
    const BackwardSegment& segment = list_.segments[std::size_t(item.segment)];
    is_whole_ &= item.tile >= segment.tile_begin;
    is_whole_ &= item.tile < segment.tile_begin + segment.num_tiles;
    const std::int32_t first =
        (item.kv_head * segment.num_pieces + item.piece) * segment.groups_per_item;
    for (std::int32_t group = first; group < first + segment.groups_per_item; ++group) {
      std::int32_t& before = next_tile_[std::size_t(group)];
      is_whole_ &= item.tile > before;
      before = item.tile;
      char& is_walked = walked_[std::size_t(item.tile * list_.head_groups + group)];
      is_whole_ &= is_walked == 0;
      is_walked = 1;
    }
    if (segment.num_pieces > 1) take_slot(item, segment);
  }

  void take_slot(const BackwardItem& item, const BackwardSegment& segment) {
    const std::int32_t owner = item.tile * list_.problem.heads_kv + item.kv_head;
    is_whole_ &= item.piece == next_piece_[std::size_t(owner)]++;
    const PieceOwner present{item.tile - segment.tile_begin, item.kv_head};
    std::int32_t& user = users_[std::size_t(slot_of(segment, present))];
    if (item.piece == 0) {
      const PieceOwner before = owner_before(segment, present);
      const std::int32_t tile = segment.tile_begin + before.tile;
      is_whole_ &= user == (before.tile < 0 ? -1 : tile * list_.problem.heads_kv + before.kv_head);
      if (!is_whole_) return;
      // Who has been awaited walks, and has all its pieces before this item.
      if (user >= 0) is_whole_ &= next_piece_[std::size_t(user)] == segment.num_pieces;
      if (user >= 0)
        is_whole_ &=
            list_.tiles[std::size_t(tile)].record_begin < list_.tiles[std::size_t(tile)].record_end;
      user = owner;
    }
    is_whole_ &= user == owner;
  }

  const BackwardList& list_;
  std::vector<std::int32_t> next_tile_;   ///< of a head group, the last one walked
  std::vector<std::int32_t> next_piece_;  ///< of a tile and kv head
  std::vector<std::int32_t> users_;       ///< of a slot: tile and kv head
  std::vector<char> walked_;
  bool is_whole_ = true;
};

TEST(BackwardListTest, ItemsWalkEverythingOnceInOrder) {
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

TEST(BackwardListTest, WrongItemsAreSeen) {
  const Mask mask{1024, 1024, {band_slice({0, 1024}, {0, 1024}, MaskType::Full)}};
  const BackwardChoice choice{.packed_heads = 1, .heads_per_item = 1, .section_heads = 1};
  const BackwardList good = build_backward_list(problem_of(mask, 32, 8), mask.slices, {}, choice);
  ASSERT_TRUE(ItemWalk(good).is_whole());
  ASSERT_LT(good.segments[0].slot_heads, 8);
  BackwardList fault = good;
  fault.segments[0].section_heads = fault.segments[0].slot_heads + 1;
  EXPECT_FALSE(ItemWalk(fault).is_whole());
  fault = good;
  fault.segments.back().slot_begin -= 1;
  EXPECT_FALSE(ItemWalk(fault).is_whole());
  fault = good;
  fault.segments[0].groups_per_item = 2;
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

TEST(BackwardListTest, DearTilesAreCutInPiecesAndCheapOnesComeLast) {
  const BackwardList list = causal_list(32768, {.packed_heads = 1, .is_ordered = false});
  ASSERT_GT(list.segments.size(), 2u);
  EXPECT_EQ(list.segments.front().num_pieces, 4);
  EXPECT_EQ(list.segments.front().section_heads, 1);
  EXPECT_EQ(list.segments.back().num_pieces, 1);
  EXPECT_EQ(list.segments.back().section_heads, 8);
  for (std::size_t i = 1; i < list.tiles.size(); ++i) {
    EXPECT_GT(list.tiles[i].key_begin, list.tiles[i - 1].key_begin);
  }
}

TEST(BackwardListTest, BuffersOfPiecesDoNotGrowWithTheSequence) {
  for (const bool is_ordered : {false, true}) {
    const BackwardChoice choice{.packed_heads = 1, .is_ordered = is_ordered};
    const BackwardList list = causal_list(32768, choice);
    // A fraction of what dK and dV would take in float32.
    EXPECT_LT(3 * list.slot_floats(128), std::int64_t{2} * 32768 * 8 * 128);
    EXPECT_LE(causal_list(1 << 19, choice).num_slots(), 4 * 132 * std::ssize(list.segments));
    EXPECT_TRUE(ItemWalk(list).is_whole());
  }
}

TEST(BackwardListTest, TilesThatCostAlikeAreWalkedWhole) {
  for (const bool is_ordered : {false, true}) {
    const Mask mask{16384, 16384, {band_slice({0, 16384}, {0, 16384}, MaskType::Full)}};
    const BackwardList list = list_of(mask, is_ordered);
    for (const BackwardSegment& segment : list.segments) EXPECT_EQ(segment.num_pieces, 1);
    EXPECT_EQ(list.segments.front().section_heads == 8, is_ordered);
  }
}

TEST(BackwardListTest, TheLastRoundOfWholeItemsIsFilledWithPieces) {
  // 2,048 whole items for 132 CTAs would end half a round later.
  const Mask mask{32768, 32768, {band_slice({0, 32768}, {0, 32768}, MaskType::Full)}};
  const BackwardList list = list_of(mask, false);
  ASSERT_EQ(list.segments.size(), 2u);
  EXPECT_EQ(list.segments.front().num_pieces, 1);
  EXPECT_GT(list.segments.back().num_pieces, 1);
  EXPECT_GT(list.segments.front().num_tiles, 8 * list.segments.back().num_tiles);
  EXPECT_TRUE(ItemWalk(list).is_whole());
}

TEST(BackwardListTest, ChoicesApplyToAllSegments) {
  const BackwardList list = causal_list(
      8192, {.packed_heads = 1, .heads_per_item = 4, .section_heads = 3, .is_ordered = false});
  ASSERT_EQ(list.segments.size(), 2u);
  for (const BackwardSegment& segment : list.segments) {
    EXPECT_EQ(segment.num_pieces, 2);
    EXPECT_EQ(segment.groups_per_item, 4);
  }
  EXPECT_EQ(list.segments.front().section_heads, 3);
}

TEST(BackwardListTest, TilesOfADocumentStayTogether) {
  // Long documents first and last, between them one whose tiles are as dear as some of theirs.
  Mask mask{16384, 16384, {}};
  for (const auto& [begin, end] : {std::pair{0, 6144}, {6144, 10240}, {10240, 16384}}) {
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
  }
  BackwardProblem problem = problem_of(mask, 8, 8);
  problem.num_ctas = 4;
  const BackwardList list = build_backward_list(problem, mask.slices, {});
  ASSERT_EQ(list.segments.size(), 2u);
  const auto document = [](const KeyTileWork& work) {
    return work.key_begin < 6144 ? 0 : work.key_begin < 10240 ? 1 : 2;
  };
  int changes = 0;
  for (std::int32_t i = 1; i < list.segments.front().num_tiles; ++i) {
    const KeyTileWork& before = list.tiles[std::size_t(i) - 1];
    const KeyTileWork& work = list.tiles[std::size_t(i)];
    const bool is_same = document(before) == document(work);
    changes += is_same ? 0 : 1;
    EXPECT_TRUE(!is_same || work.key_begin > before.key_begin);
  }
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(document(list.tiles.front()), 0);
}

TEST(BackwardListTest, ShortListsKeepDocumentsTogetherBeforeAShortTail) {
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
  EXPECT_EQ(8 % list.segments.front().section_heads, 0);
  const std::int32_t num_before = list.segments.back().tile_begin;
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

TEST(BackwardListTest, WindowsWalkHeadByHeadInTurn) {
  const Mask window{16384, 16384, {{0, 16384, 0, 16384, -1023, 0}}};
  for (const bool is_ordered : {false, true}) {
    const BackwardList list = list_of(window, is_ordered);
    EXPECT_TRUE(list.is_group_first);
    EXPECT_TRUE(list.is_ordered);
    EXPECT_LT(list.segments.front().section_heads, 8);
  }
}

TEST(BackwardListTest, DenseMasksWalkHeadsTogether) {
  const Mask causal{8192, 8192, {band_slice({0, 8192}, {0, 8192}, MaskType::Causal)}};
  for (const bool is_ordered : {false, true}) {
    const BackwardList list = list_of(causal, is_ordered);
    EXPECT_FALSE(list.is_group_first);
    EXPECT_EQ(list.is_ordered, is_ordered);
  }
}

TEST(BackwardListTest, SplitsHeadsWhereItemsAreFew) {
  const Mask mask{512, 512, {band_slice({0, 512}, {0, 512}, MaskType::Full)}};
  BackwardProblem problem = problem_of(mask, 16, 2);
  const BackwardList whole = build_backward_list(problem, mask.slices, {});
  ASSERT_EQ(whole.segments.size(), 1u);
  EXPECT_EQ(whole.segments.front().num_pieces, 1);
  EXPECT_EQ(whole.num_slots(), 0);
  problem.num_ctas = 64;
  const BackwardList list = build_backward_list(problem, mask.slices, {}, {.packed_heads = 1});
  ASSERT_EQ(list.segments.size(), 1u);
  EXPECT_EQ(list.segments.front().num_pieces, 4);
  EXPECT_EQ(list.segments.front().groups_per_item, 2);
  EXPECT_EQ(list.num_items(), 32);
  EXPECT_EQ(list.slot_floats(128), 8 * 2 * 128 * 128);
  EXPECT_EQ(list.num_counters(), 16 * (8 + 1) + 2 * 4 * 2 + 1);
  const BackwardChoice choice{.packed_heads = 2, .heads_per_item = 4};
  EXPECT_EQ(build_backward_list(problem, mask.slices, {}, choice).segments.front().num_pieces, 2);
}

TEST(BackwardListTest, FewItemsAreCutAlike) {
  // Dear tiles in many pieces before cheap whole ones would end later: 93 steps instead of 74.
  const Mask mask{2048, 2048, {band_slice({0, 2048}, {0, 2048}, MaskType::Causal)}};
  BackwardProblem problem = problem_of(mask, 64, 8);
  problem.num_ctas = 132;
  problem.dim_qk = problem.dim_v = 64;
  const BackwardList list = build_backward_list(problem, mask.slices, kWideShape,
                                                {.packed_heads = 1, .is_ordered = false});
  for (const BackwardSegment& segment : list.segments) EXPECT_EQ(segment.num_pieces, 2);
  EXPECT_TRUE(ItemWalk(list).is_whole());
}

TEST(BackwardListTest, ListsKeysThatNobodySeesAndNoRowsAtAll) {
  const BackwardList list = build_backward_list(problem_of({0, 400, {}}, 4, 1), {}, {});
  EXPECT_EQ(list.tiles.size(), 4u);
  EXPECT_TRUE(list.records.empty());
  EXPECT_EQ(list.num_sums(), 0);
  EXPECT_EQ(build_backward_list(problem_of({9, 0, {}}, 4, 1), {}, {}).num_items(), 0);
}

TEST(BackwardListTest, RefusesWhatItCannotPack) {
  const BackwardProblem problem{.rows_q = 10, .rows_k = 10, .heads_q = 12, .heads_kv = 2};
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = 4}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = 3}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = -1}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.heads_per_item = 4}), InvalidArgument);
  EXPECT_THROW(build_backward_list(problem, {}, {}, {.packed_heads = 2, .heads_per_item = 3}),
               InvalidArgument);
  BackwardProblem uneven = problem;
  uneven.heads_q = 5;
  EXPECT_THROW(build_backward_list(uneven, {}, {}), InvalidArgument);
  const BandSlice outside{.q0 = 0, .q1 = 11, .k0 = 0, .k1 = 10};
  EXPECT_THROW(build_backward_list(problem, {&outside, 1}, {}), InvalidArgument);
}

}  // namespace
}  // namespace magi::test
