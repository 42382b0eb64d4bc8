// SPDX-License-Identifier: Apache-2.0
#include "draw/pictures.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "draw/schedule.hpp"
#include "draw/xml.hpp"
#include "magi/error.hpp"
#include "support/random_mask.hpp"

namespace magi::draw {
namespace {

Mask two_documents() {
  return {.rows_q = 64,
          .rows_k = 64,
          .slices = {band_slice({0, 40}, {0, 40}, MaskType::Causal),
                     band_slice({40, 64}, {40, 64}, MaskType::Full)}};
}

/// A plan by hand: two ranks, rank 1 fetches 16 rows of rank 0 in two waves by heads.
Plan small_plan() {
  Plan plan;
  plan.mask = two_documents();
  plan.config = {.num_ranks = 2,
                 .num_heads_q = 4,
                 .num_heads_kv = 2,
                 .head_dim_qk = 8,
                 .head_dim_v = 8,
                 .element_bytes = 4};
  plan.placement_q = placement_from_chunks(64, 16, 2, {0, 1, 1, 0});
  plan.placement_k = plan.placement_q;
  plan.num_waves = 3;
  plan.ranks.resize(2);
  for (std::int32_t r = 0; r < 2; ++r) {
    RankPlan& rank = plan.ranks[static_cast<std::size_t>(r)];
    rank.q.segments = {{.owner = r, .num_rows = 32}};
    rank.k.segments = {{.owner = r, .num_rows = 32},
                       {.owner = kManyOwners, .num_rows = 16 * r, .wave = 1}};
    rank.slices = {{.q0 = 0, .q1 = 32, .k0 = 0, .k1 = 32}};
    rank.waves = {{.k_segment = 0, .heads = {0, 2}, .slices = {0, 1}},
                  {.k_segment = 1, .heads = {0, 1}, .slices = {1, 1}},
                  {.k_segment = 1, .heads = {1, 2}, .slices = {1, 1}}};
  }
  plan.ranks[1].slices.push_back({.q0 = 0, .q1 = 10, .k0 = 0, .k1 = 16});
  plan.ranks[1].waves[1].slices = plan.ranks[1].waves[2].slices = {1, 2};
  plan.transfers = {{.src = 0, .dst = 1, .dst_segment = 1, .num_rows = 16}};
  plan.report = {.rank_area = {500, 896},
                 .rank_rows = {32, 32},
                 .remote_rows = {0, 16},
                 .pair_bytes = {0, 2048, 0, 0},
                 .balance = 1.284,
                 .total_bytes = 2048,
                 .lower_bound_bytes = 1024,
                 .ring_bytes = 8192};
  return plan;
}

bool has(const std::string& picture, const std::string& text) {
  return picture.find(text) != std::string::npos;
}

/// Area of all closed polygons of the picture's paths, in square pixels.
double path_pixels(const std::string& picture) {
  double sum = 0.0;
  for (std::size_t path = picture.find("<path"); path != std::string::npos;
       path = picture.find("<path", path + 1)) {
    const char* at = picture.c_str() + picture.find(" d=\"", path) + 4;
    double first[2] = {0, 0};
    double last[2] = {0, 0};
    while (*at != '"') {
      const char command = *at++;
      double point[2] = {first[0], first[1]};
      if (command != 'Z') {
        char* rest = nullptr;
        point[0] = std::strtod(at, &rest);
        point[1] = std::strtod(rest, &rest);
        at = rest;
      }
      if (command == 'M') {
        first[0] = point[0];
        first[1] = point[1];
      } else {
        sum += last[0] * point[1] - point[0] * last[1];
      }
      last[0] = point[0];
      last[1] = point[1];
    }
  }
  return std::abs(sum) / 2.0;
}

TEST(MaskPicture, PaintedPixelsAreTheMasksArea) {
  const Placement placement = placement_from_chunks(64, 16, 2, {0, 1, 1, 0});
  const Mask mask = two_documents();
  const double pixels_per_cell = (520.0 / 64) * (520.0 / 64);
  for (const Placement* owner : {static_cast<const Placement*>(nullptr), &placement}) {
    const std::string picture = mask_picture(mask, owner, "two documents");
    EXPECT_NEAR(path_pixels(picture) / pixels_per_cell, static_cast<double>(area(mask)), 0.5);
  }
}

TEST(MaskPicture, LargeMasksKeepTheirArea) {
  const Mask mask{
      .rows_q = 100000,
      .rows_k = 100000,
      .slices = {
          band_slice({0, 60000}, {0, 60000}, MaskType::Causal),
          {.q0 = 60000, .q1 = 100000, .k0 = 60000, .k1 = 100000, .d_min = -20000, .d_max = 0}}};
  const double share = static_cast<double>(area(mask)) / 1e10;
  EXPECT_NEAR(path_pixels(mask_picture(mask, nullptr, "")) / (520.0 * 520.0), share, 1e-4);
}

TEST(MaskPicture, NamesWorkOfEachRank) {
  const Placement placement = placement_from_chunks(64, 16, 2, {0, 1, 1, 0});
  const std::string picture = mask_picture(two_documents(), &placement, "two <documents>");
  EXPECT_TRUE(has(picture, "two &lt;documents&gt;"));
  // Rank 0: rows 0-15 of the causal document (136) and the last 16 of the full one (16 x 24).
  EXPECT_TRUE(has(picture, ">37.2 %<")) << picture;
  EXPECT_TRUE(has(picture, "1,396 pairs (34.1 % of dense)"));
}

TEST(MaskPicture, NamesTypesWithoutAPlacement) {
  const std::string picture = mask_picture(two_documents(), nullptr, "");
  EXPECT_TRUE(has(picture, ">full<"));
  EXPECT_TRUE(has(picture, ">causal<"));
  EXPECT_FALSE(has(picture, ">inverse causal<"));
  EXPECT_TRUE(has(picture, ">58.7 %<"));  // 820 of 1,396
}

TEST(MaskPicture, RandomAndDegenerateMasksAreWellFormed) {
  RandomStream random(5);
  for (int round = 0; round < 200; ++round) {
    const Mask mask = random_mask(random);
    SCOPED_TRACE(testing::describe(mask));
    const std::string picture = mask_picture(mask, nullptr, "random");
    EXPECT_EQ(testing::xml_fault(picture), "");
    EXPECT_FALSE(has(picture, "nan"));
    EXPECT_FALSE(has(picture, "inf"));
  }
  EXPECT_EQ(testing::xml_fault(mask_picture(Mask{}, nullptr, "nothing")), "");
  const Mask thin{.rows_q = 1, .rows_k = 100000, .slices = {{.q0 = 0, .q1 = 1, .k1 = 100000}}};
  EXPECT_EQ(testing::xml_fault(mask_picture(thin, nullptr, "one row")), "");
}

TEST(MaskPicture, APlacementOfFewerRowsIsRefused) {
  const Placement placement = placement_from_chunks(32, 16, 2, {0, 1});
  EXPECT_THROW(mask_picture(two_documents(), &placement, ""), InvalidArgument);
}

TEST(PlacementPicture, ShowsChunksRowsAndWork) {
  const std::string picture = placement_picture(small_plan(), "placement");
  EXPECT_EQ(testing::xml_fault(picture), "");
  EXPECT_TRUE(has(picture, "4 chunks of 16 rows on 2 ranks, by auto"));
  EXPECT_TRUE(has(picture, "1.284 x the mean"));
  EXPECT_TRUE(has(picture, "chunk 2, rows 32 to 48, rank 1"));
  EXPECT_TRUE(has(picture, ">35.8 %<"));
}

TEST(PlacementPicture, KeysPlacedApartHaveTheirOwnStrip) {
  Plan plan = small_plan();
  plan.config.placement_k = PlacementConfig{};
  EXPECT_TRUE(has(placement_picture(plan, "cross"), ">keys<"));
  EXPECT_FALSE(has(placement_picture(small_plan(), "self"), ">keys<"));
}

TEST(TrafficPicture, ShowsBytesOfEachPairAndTheTotals) {
  const std::string picture = traffic_picture(small_plan(), "traffic");
  EXPECT_EQ(testing::xml_fault(picture), "");
  EXPECT_TRUE(has(picture, "rank 0 to rank 1: 2,048 bytes"));
  EXPECT_TRUE(has(picture, "2,048 (25 % of a ring)"));
  EXPECT_TRUE(has(picture, ">8 KiB<"));
}

TEST(TrafficPicture, ManyRanksAndNoBytes) {
  Plan plan = small_plan();
  plan.config.num_ranks = 200;
  plan.report.pair_bytes.assign(200 * 200, 0);
  EXPECT_EQ(testing::xml_fault(traffic_picture(plan, "quiet")), "");
}

TEST(Schedule, WavesFollowTheirRows) {
  const Plan plan = small_plan();
  const std::vector<RankSchedule> schedules = forward_schedule(plan);
  ASSERT_EQ(schedules.size(), 2u);
  // Rank 0 only sends; nothing that it computes waits.
  ASSERT_EQ(schedules[0].transfers.size(), 2u);
  EXPECT_EQ(schedules[0].transfers[0].amount, 0);
  EXPECT_EQ(schedules[0].attention[0].begin, 0.0);
  EXPECT_EQ(schedules[0].attention.size(), 1u);
  const RankSchedule& busy = schedules[1];
  ASSERT_EQ(busy.transfers.size(), 2u);
  ASSERT_EQ(busy.attention.size(), 3u);
  // 16 rows x 1 head x (8 + 8) elements x 4 bytes.
  EXPECT_EQ(busy.transfers[0].amount, 1024);
  EXPECT_NEAR(busy.transfers[0].end, 1024 / 275e9 + 2e-6, 1e-15);
  EXPECT_EQ(busy.transfers[1].begin, busy.transfers[0].end);
  EXPECT_EQ(busy.attention[0].amount, 32 * 32 * 4);
  EXPECT_EQ(busy.attention[2].amount, 160 * 2);
  for (std::size_t w = 1; w < 3; ++w) {
    EXPECT_GE(busy.attention[w].begin, busy.transfers[w - 1].end);
    EXPECT_GE(busy.attention[w].begin, busy.attention[w - 1].end);
  }
}

TEST(Schedule, EndsWhenThePlannerPredicts) {
  RandomStream random(9);
  RandomMaskOptions options;
  options.min_rows = 40;
  for (int round = 0; round < 300; ++round) {
    const Mask mask = random_mask(random, options);
    PlanConfig config{.num_ranks = random.between(1, 5), .num_heads_q = 4, .num_heads_kv = 2};
    config.overlap_degree = random.between(0, 3);
    config.wave_mode = random.chance(50) ? WaveMode::Heads : WaveMode::Rows;
    config.min_wave_rows = 4;
    // Rates at which launches, transfers and work all matter.
    config.cost = {.flops_per_second = 1e9, .bytes_per_second = 1e9};
    const Plan plan = make_plan(mask, config);
    double end = 0.0;
    for (const RankSchedule& rank : forward_schedule(plan)) {
      if (!rank.attention.empty()) end = std::max(end, rank.attention.back().end);
    }
    SCOPED_TRACE(testing::describe(mask));
    EXPECT_NEAR(end, plan.report.forward_seconds, 40e-9);
  }
}

TEST(TimelinePicture, ShowsWavesAndTimes) {
  const std::string picture = timeline_picture(small_plan(), "timeline");
  EXPECT_EQ(testing::xml_fault(picture), "");
  EXPECT_TRUE(has(picture, "transfers of wave 2"));
  EXPECT_TRUE(has(picture, "3 waves"));
  Plan idle = small_plan();
  for (RankPlan& rank : idle.ranks) rank.waves.clear();
  EXPECT_EQ(testing::xml_fault(timeline_picture(idle, "idle")), "");
}

TEST(Pictures, EqualInputsGiveEqualBytes) {
  const Plan plan = small_plan();
  EXPECT_EQ(mask_picture(plan.mask, &plan.placement_q, "a"),
            mask_picture(plan.mask, &plan.placement_q, "a"));
  EXPECT_EQ(placement_picture(plan, "a"), placement_picture(plan, "a"));
  EXPECT_EQ(traffic_picture(plan, "a"), traffic_picture(plan, "a"));
  EXPECT_EQ(timeline_picture(plan, "a"), timeline_picture(plan, "a"));
}

TEST(Xml, TheCheckerFindsFaults) {
  EXPECT_EQ(testing::xml_fault("<a b=\"c\"><d/>e&amp;</a>\n"), "");
  for (const char* bad : {"", "<a>", "<a></b>", "<a b=c/>", "<a b=\"1\" b=\"2\"/>", "<a/><b/>",
                          "<a>&nbsp;</a>", "<a", "x<a/>", "<a b=\"1/>"}) {
    EXPECT_NE(testing::xml_fault(bad), "") << bad;
  }
}

}  // namespace
}  // namespace magi::draw
