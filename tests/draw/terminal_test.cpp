// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "draw/pictures.hpp"
#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "support/random_mask.hpp"

namespace magi::draw {
namespace {

constexpr TerminalStyle kNarrow{.width = 40};
constexpr TerminalStyle kNarrowAscii{.width = 40, .is_ascii = true};

/// A causal document of five rows, and one of three that is seen whole.
Mask two_documents() {
  return {.rows_q = 8,
          .rows_k = 8,
          .slices = {band_slice({0, 5}, {0, 5}, MaskType::Causal),
                     band_slice({5, 8}, {5, 8}, MaskType::Full)}};
}

/// Columns of a line: bytes that begin a character.
std::size_t columns_of(const std::string& line) {
  return static_cast<std::size_t>(
      std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(MaskText, ShowsEachCellOfASmallMask) {
  EXPECT_EQ(mask_text(two_documents(), nullptr, "two documents", kNarrow),
            "two documents\n"
            "8 queries, 8 keys, 2 slices, 24 pairs (37.5 % of dense)\n"
            "               0              5        8\n"
            "              ┌────────────────────────┐\n"
            "            0 │███                     │\n"
            "              │███▄▄▄                  │\n"
            "              │██████                  │\n"
            "              │█████████               │\n"
            "              │█████████▄▄▄            │\n"
            "              │████████████            │\n"
            "              │███████████████         │\n"
            "            5 │▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▄▄▄▄▄▄▄▄▄│\n"
            "              │               █████████│\n"
            "              │               █████████│\n"
            "              │               █████████│\n"
            "              │               █████████│\n"
            "            8 └────────────────────────┘\n"
            "slice type: share of work\n"
            "full: 37.5 %\n"
            "causal: 62.5 %\n");
}

TEST(MaskText, NamesTheRanksThatHoldALine) {
  const Placement placement = placement_from_chunks(8, 2, 3, {0, 2, 1, 0});
  EXPECT_EQ(mask_text(two_documents(), &placement, "mask", kNarrowAscii),
            "mask\n"
            "8 queries, 8 keys, 2 slices, 24 pairs (37.5 % of dense)\n"
            "               0    5  8\n"
            "              +--------+ ranks\n"
            "            0 |#.      | 0\n"
            "              |###.    | 2\n"
            "            5 |'''''...| 1\n"
            "              |     ###| 0\n"
            "            8 +--------+\n"
            "rank: share of work\n"
            "   0: 37.5 %     1: 33.3 %\n"
            "   2: 29.2 %\n");
}

TEST(MaskText, APartHasItsOwnRowsAndKeys) {
  const Placement placement = placement_from_chunks(8, 2, 3, {0, 2, 1, 0});
  EXPECT_EQ(mask_text(two_documents(), &placement, "part", kNarrowAscii, {.rows = Range{5, 7}}),
            "part\n"
            "queries 5 to 7 of 8, keys 5 to 8 of 8, 1 slice, 6 pairs (100 % of dense)\n"
            "               5  6     8\n"
            "              +---------+ ranks\n"
            "            5 |#########| 1\n"
            "            6 |#########| 0 1\n"
            "              |#########| 0\n"
            "            7 +---------+\n"
            "rank: share of work\n"
            "   0: 50 %       1: 50 %\n"
            "   2: 0 %\n");
}

TEST(MaskText, ColoursArePartOfTheStyle) {
  const Placement placement = placement_from_chunks(8, 2, 3, {0, 2, 1, 0});
  const TerminalStyle colour{.width = 40, .has_colour = true};
  const std::string plain = mask_text(two_documents(), &placement, "", kNarrow);
  std::string text = mask_text(two_documents(), &placement, "", colour);
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("\x1b[0;38;2;"), std::string::npos);
  EXPECT_NE(text.find("\x1b[0m"), std::string::npos);
}

TEST(MaskText, EveryPairIsInAPaintedPixelAndOthersAreNot) {
  RandomStream random(51);
  for (int n = 0; n < 200; ++n) {
    const Mask mask = random_mask(random, {.min_rows = 1});
    SCOPED_TRACE("seed 51 case " + std::to_string(n) + testing::describe(mask));
    if (std::max(mask.rows_q, mask.rows_k) > 24) continue;
    // One pixel for each row and key, or a whole number of them.
    const auto lines = lines_of(mask_text(mask, nullptr, "", kNarrowAscii));
    const std::int32_t scale = 24 / std::max(mask.rows_q, mask.rows_k);
    const auto counts = expand(mask);
    for (std::int32_t row = 0; row < mask.rows_q; ++row) {
      for (std::int32_t key = 0; key < mask.rows_k; ++key) {
        const std::int32_t pixel = row * scale;
        const char glyph = lines[static_cast<std::size_t>(4 + pixel / 2)]
                                [static_cast<std::size_t>(15 + key * scale)];
        const bool is_painted = glyph == '#' || glyph == (pixel % 2 == 0 ? '\'' : '.');
        const auto cell = static_cast<std::size_t>(row) * static_cast<std::size_t>(mask.rows_k) +
                          static_cast<std::size_t>(key);
        ASSERT_EQ(is_painted, counts[cell] != 0) << row << " " << key;
      }
    }
  }
}

TEST(MaskText, LongMasksOfManyRanksFitTheWidth) {
  const std::vector<std::int32_t> documents{0, 10000, 31000, 65536};
  const Mask mask = mask_from_cu_seqlens(documents, documents, {.is_causal = true});
  const Plan plan = make_plan(mask, {.num_ranks = 64, .num_heads_q = 8, .num_heads_kv = 8});
  for (const std::int32_t width : {40, 80, 132, 300}) {
    for (const std::string& text : {mask_text(mask, &plan.placement_q, "mask", {.width = width}),
                                    timeline_text(plan, "timeline", {.width = width})}) {
      const auto lines = lines_of(text);
      EXPECT_LT(lines.size(), 110u);
      for (std::size_t i = 2; i < lines.size(); ++i) {
        if (lines[i].find("exchanges") != std::string::npos) continue;  // prose
        EXPECT_LE(columns_of(lines[i]), static_cast<std::size_t>(width)) << lines[i];
        EXPECT_FALSE(lines[i].ends_with(' ')) << "'" << lines[i] << "'";
      }
    }
  }
}

TEST(MaskText, ManyRanksAreSummedUp) {
  const Mask mask{1 << 17, 1 << 17, {band_slice({0, 1 << 17}, {0, 1 << 17}, MaskType::Causal)}};
  const Plan plan = make_plan(mask, {.num_ranks = 1024, .num_heads_q = 8, .num_heads_kv = 8});
  EXPECT_NE(mask_text(mask, &plan.placement_q, "", {}).find("of 1024 ranks the most "),
            std::string::npos);
  EXPECT_NE(timeline_text(plan, "", {}).find("; the first 64 of 1024 ranks\n"), std::string::npos);
}

TEST(MaskText, MasksWithoutPairsAndThinOnesAreDrawn) {
  EXPECT_NE(mask_text(Mask{}, nullptr, "none", kNarrow).find("0 queries"), std::string::npos);
  const Mask thin{.rows_q = 1, .rows_k = 100000, .slices = {{.q0 = 0, .q1 = 1, .k1 = 100000}}};
  EXPECT_NE(mask_text(thin, nullptr, "", kNarrow).find("│████████████████████████│"),
            std::string::npos);
  const Placement placement = placement_from_chunks(4, 2, 2, {0, 1});
  EXPECT_THROW(mask_text(two_documents(), &placement, "", kNarrow), InvalidArgument);
}

/// One rank attends alone; two exchange as well.
TEST(TimelineText, ShowsWhenRanksExchangeAndAttend) {
  const Mask mask = two_documents();
  const Plan one = make_plan(mask, {.num_ranks = 1, .num_heads_q = 1, .num_heads_kv = 1});
  const std::string text = timeline_text(one, "alone", kNarrowAscii);
  const auto lines = lines_of(text);
  ASSERT_EQ(lines.size(), 7u) << text;
  EXPECT_EQ(lines[0], "alone");
  EXPECT_EQ(lines[1].substr(0, 47), "one forward pass as the cost model predicts it:");
  EXPECT_EQ(lines[3], "          +--------------------+");
  EXPECT_EQ(lines[4], "rank 0    |....................| 100 %");
  EXPECT_EQ(lines[5], lines[3]);
  EXPECT_EQ(lines[6], "' exchanges, . attends, # both; % of the time that a rank attends");
}

TEST(TimelineText, TwoRanksExchangeBesides) {
  const Mask mask{4096, 4096, {band_slice({0, 4096}, {0, 4096}, MaskType::Causal)}};
  const Plan plan = make_plan(mask, {.num_ranks = 2, .num_heads_q = 8, .num_heads_kv = 8});
  const auto lines = lines_of(timeline_text(plan, "two", kNarrow));
  ASSERT_EQ(lines.size(), 8u);
  for (const std::size_t rank : {4u, 5u}) {
    EXPECT_NE(lines[rank].find("█"), std::string::npos) << lines[rank];
    EXPECT_NE(lines[rank].find("▄"), std::string::npos) << lines[rank];
    EXPECT_EQ(lines[rank].substr(0, 13), (rank == 4 ? "rank 0    │" : "rank 1    │"));
  }
}

}  // namespace
}  // namespace magi::draw
