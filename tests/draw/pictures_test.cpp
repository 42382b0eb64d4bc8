// SPDX-License-Identifier: Apache-2.0
#include "draw/pictures.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "draw/numbers.hpp"
#include "draw/xml.hpp"
#include "magi/error.hpp"
#include "plan/plan_support.hpp"
#include "support/random_mask.hpp"

namespace magi::draw {
namespace {

Mask two_documents() {
  return {.rows_q = 64,
          .rows_k = 64,
          .slices = {band_slice({0, 40}, {0, 40}, MaskType::Causal),
                     band_slice({40, 64}, {40, 64}, MaskType::Full)}};
}

/// A plan by hand: two ranks, rank 1 fetches 16 rows of rank 0 in two stages by heads.
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
  for (const Role role : {Role::KeysValues, Role::KeyGradients}) {
    for (std::int32_t head = 0; head < 2; ++head) {
      plan.exchanges.push_back({.role = role, .heads = {head, head + 1}, .stage = 1 + head});
    }
  }
  plan.ranks.resize(2);
  for (std::int32_t r = 0; r < 2; ++r) {
    RankPlan& rank = plan.ranks[static_cast<std::size_t>(r)];
    rank.q.segments = {{.owner = r, .num_rows = 32}};
    rank.k.segments = {{.owner = r, .num_rows = 32}, {.owner = kManyOwners, .num_rows = 16 * r}};
    rank.slices = {{.q0 = 0, .q1 = 32, .k0 = 0, .k1 = 32}};
    rank.attends = {{.heads = {0, 2}, .slices = {0, 1}}};
  }
  plan.ranks[1].slices.push_back({.q0 = 0, .q1 = 10, .k0 = 0, .k1 = 16});
  for (std::int32_t head = 0; head < 2; ++head) {
    plan.ranks[1].attends.push_back(
        {.k_segment = 1, .heads = {head, head + 1}, .slices = {1, 2}, .is_merging = true});
  }
  for (RankPlan& rank : plan.ranks) planner::make_steps(plan.exchanges, rank);
  plan.transfers = {{.src = 0, .dst = 1, .dst_segment = 1, .num_rows = 16}};
  plan.report = {.rank_area = {500, 896},
                 .rank_rows = {32, 32},
                 .remote_rows = {0, 16},
                 .rank_memory = {0, 6144},
                 .pair_bytes = {0, 2048, 0, 0},
                 .balance = 1.284,
                 .total_bytes = 2048,
                 .lower_bound_bytes = 1024,
                 .ring_bytes = 8192};
  return plan;
}

/// Its ranks have nothing to do.
Plan idle_plan() {
  Plan plan = small_plan();
  for (RankPlan& rank : plan.ranks) {
    rank.attends.clear();
    rank.forward.clear();
    rank.backward.clear();
  }
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

TEST(MaskPicture, APartHasTheKeysThatItsRowsSee) {
  const Mask mask = two_documents();
  const std::string picture = mask_picture(mask, nullptr, "part", {.rows = Range{30, 50}});
  EXPECT_EQ(testing::xml_fault(picture), "");
  // Rows 30 to 39 see 31 to 40 keys each, the ten after them 24.
  EXPECT_TRUE(
      has(picture, "queries 30 to 50 of 64, 64 keys, 2 slices, 595 pairs (46.5 % of dense)"));
  EXPECT_TRUE(has(picture, ">30<") && has(picture, ">50<") && !has(picture, ">60<")) << picture;
  const std::string lower = mask_picture(mask, nullptr, "part", {.rows = Range{50, 60}});
  EXPECT_TRUE(has(lower, "queries 50 to 60 of 64, keys 40 to 64 of 64, 1 slice, 240 pairs"));
  EXPECT_NEAR(path_pixels(lower), 520.0 * 520 * 10 / 24, 2.0);
  const MaskPart square{.rows = Range{30, 50}, .keys = Range{30, 50}};
  EXPECT_NEAR(path_pixels(mask_picture(mask, nullptr, "", square)) / (26 * 26), 55 + 100, 0.1);
  // Of a part without pairs all keys are drawn.
  const Mask none{.rows_q = 8, .rows_k = 9};
  EXPECT_TRUE(
      has(mask_picture(none, nullptr, "", {.rows = Range{2, 4}}), "of 8, 9 keys, 0 slices"));
}

TEST(MaskPicture, APartThatIsNoneIsRefused) {
  for (const Range wrong : {Range{-1, 4}, Range{5, 5}, Range{7, 6}, Range{0, 65}}) {
    EXPECT_THROW(mask_picture(two_documents(), nullptr, "", {.rows = wrong}), InvalidArgument);
    EXPECT_THROW(mask_picture(two_documents(), nullptr, "", {.keys = wrong}), InvalidArgument);
  }
}

TEST(MaskPicture, ThinMasksAreDrawnByDensity) {
  constexpr std::int32_t kRows = 130'000;  // 130 blocks of 1,000
  Mask mask{.rows_q = kRows,
            .rows_k = kRows,
            .slices = {{.q1 = kRows, .k1 = kRows, .d_min = -100, .d_max = 100},
                       {.q1 = 1000, .k0 = 50'000, .k1 = 51'000}}};
  const std::string picture = mask_picture(mask, nullptr, "window");
  EXPECT_EQ(testing::xml_fault(picture), "");
  EXPECT_TRUE(has(picture, "blocks of 1,000 rows and 1,000 keys"));
  // Those of the diagonal hold a fifth of their pairs, two eighths of shade; the other one all.
  EXPECT_TRUE(has(picture, "fill-opacity=\"0.55\""));
  EXPECT_TRUE(has(picture, "d=\"M284 104h4v4h-4Z\""));
  // Beside the diagonal as well: the window reaches into the next block.
  EXPECT_TRUE(has(picture, "M88 104h4v4h-4Z"));
  EXPECT_FALSE(has(picture, "M92 104h4v4h-4Z"));
  // A part of it has thick slices, and so has a mask whose documents are long.
  EXPECT_FALSE(has(mask_picture(mask, nullptr, "", {.rows = Range{0, 2000}}), "fill-opacity"));
  mask.slices.push_back({.q0 = 1000, .q1 = kRows, .k1 = kRows / 2, .d_max = 0});
  mask.slices.push_back({.q0 = 1000, .q1 = kRows, .k0 = kRows / 2, .k1 = kRows});
  EXPECT_FALSE(has(mask_picture(mask, nullptr, "documents"), "fill-opacity"));
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

TEST(PlacementPicture, ShowsRunsThatComeAfterRowsOfOtherRanks) {
  Plan plan = small_plan();
  EXPECT_FALSE(has(placement_picture(plan, "of an older file"), ">runs<"));
  plan.report.rank_runs = {1, 1234};
  const std::string picture = placement_picture(plan, "runs of ranks");
  EXPECT_TRUE(has(picture, ">runs<") && has(picture, ">1,234<"));
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

TEST(TrafficPicture, FramesNodesAndTellsWhatCrosses) {
  Plan plan = small_plan();
  EXPECT_FALSE(has(traffic_picture(plan, "one node"), "between nodes"));
  plan.config.devices_per_node = 1;
  const std::string picture = traffic_picture(plan, "two nodes");
  EXPECT_EQ(testing::xml_fault(picture), "");
  EXPECT_TRUE(has(picture, "; between nodes of 1: 2,048"));
  EXPECT_TRUE(has(picture, "stroke=\"#e8590c\""));
}

TEST(TimelinePicture, ShowsStagesAndTimes) {
  const std::string picture = timeline_picture(small_plan(), "timeline");
  EXPECT_EQ(testing::xml_fault(picture), "");
  // 16 rows x 1 head x (8 + 8) elements x 4 bytes.
  EXPECT_TRUE(has(picture, "exchange of stage 2: 12 us to 24 us, 1,024 bytes in")) << picture;
  EXPECT_TRUE(has(picture, "attention of stage 1: "));
  EXPECT_TRUE(has(picture, ", 320 pairs times heads"));
  EXPECT_TRUE(has(picture, "3 stages"));
  EXPECT_TRUE(has(picture, ">numbers are stages<") && has(picture, ">time<"));
  EXPECT_EQ(testing::xml_fault(timeline_picture(idle_plan(), "idle")), "");
}

TEST(TimelinePicture, BarsOfAPlanWithoutStagesHaveNoNumbers) {
  PlanConfig config{.num_ranks = 2, .num_heads_q = 8, .num_heads_kv = 8, .overlap_degree = 0};
  const Mask mask{4096, 4096, {band_slice({0, 4096}, {0, 4096}, MaskType::Causal)}};
  const std::string picture = timeline_picture(make_plan(mask, config), "one stage");
  EXPECT_TRUE(has(picture, "attention: ") && has(picture, "exchange: ")) << picture;
  EXPECT_FALSE(has(picture, ">0<") || has(picture, "of stage") || has(picture, "are stages"));
}

TEST(TimelinePicture, TellsTheMemoryOfStagesThatTakeTurns) {
  const Mask mask{4096, 4096, {band_slice({0, 4096}, {0, 4096}, MaskType::Causal)}};
  PlanConfig config{.num_ranks = 2, .num_heads_q = 8, .num_heads_kv = 8};
  config.max_exchange_bytes = 8 << 20;  // of 24
  const Plan plan = make_plan(mask, config);
  const std::string told = " stages, 6 MiB of exchange memory";
  EXPECT_TRUE(has(timeline_picture(plan, "turns"), told)) << timeline_picture(plan, "turns");
  EXPECT_TRUE(has(timeline_text(plan, "turns", {}), "6 MiB of exchange memory"));
}

TEST(TimelinePicture, ShowsMovingQueriesAndNodes) {
  PlanConfig config{.num_ranks = 4,
                    .num_heads_q = 4,
                    .num_heads_kv = 4,
                    .head_dim_qk = 64,
                    .overlap_degree = 1,
                    .work = WorkMode::Queries};
  const Mask mask{.rows_q = 4096,
                  .rows_k = 4096,
                  .slices = {band_slice({0, 4096}, {0, 4096}, MaskType::Causal)}};
  const std::string flat = timeline_picture(make_plan(mask, config), "queries");
  EXPECT_EQ(testing::xml_fault(flat), "");
  for (const char* text : {"exchange of queries of stage 1: ", "return of results of stage 1: ",
                           "exchange of stage 1: ", ">results back<", ">keys, values<"}) {
    EXPECT_TRUE(has(flat, text)) << text;
  }
  EXPECT_FALSE(has(flat, ">node 0<"));
  EXPECT_FALSE(has(timeline_picture(small_plan(), "keys"), ">results back<"));
  config.devices_per_node = 2;
  const Plan plan = make_plan(mask, config);
  const std::string nodes = timeline_picture(plan, "nodes");
  EXPECT_EQ(testing::xml_fault(nodes), "");
  EXPECT_TRUE(has(nodes, ">node 1<"));
  // Rows of queries that come to rank 0 from ranks 2 and 3, by hand, straight or by node.
  std::int64_t crossing = 0;
  for (const Transfer& t : plan.transfers) {
    const bool is_counted = t.space == Space::Queries && t.dst == 1 && t.src >= 2;
    if (is_counted && !is_by_node(plan, Space::Queries, 1)) crossing += t.num_rows;
  }
  for (const Hop& hop : find_hops(plan)) {
    const bool is_counted = hop.space == Space::Queries && hop.to == 1 && hop.from >= 2;
    if (is_counted) crossing += hop.num_rows;
  }
  if (crossing > 0) {
    EXPECT_TRUE(has(nodes, ", " + grouped(crossing * 4 * 64 * 2) + " from other nodes, "));
  }
  EXPECT_TRUE(has(nodes, " handed on inside"));
}

TEST(StepsPicture, ShowsBoxesAndWhatTheyWaitFor) {
  const std::string picture = steps_picture(small_plan(), "steps");
  EXPECT_EQ(testing::xml_fault(picture), "");
  for (const char* text :
       {">rank 1<", ">forward<", ">backward<", ">k, v to segment 1, kv head 1<",
        ">in 16 rows, 1 KiB<", ">out 16 rows, 1 KiB<", ">q own, k segment 1, kv head 0<",
        ">1 slice, 160 pairs<", ">merges into out, lse<", ">writes dq; dk, dv<",
        ">adds to dq; dk, dv<", ">dk, dv of segment 1, kv head 0<", "exchange, stage 2: "}) {
    EXPECT_TRUE(has(picture, text)) << text;
  }
  // Arrows: rank 1 has two attention calls that wait and two exchanges back in the backward; so has
  // rank 0.
  std::size_t arrows = 0;
  for (std::size_t at = picture.find("<path"); at != std::string::npos;
       at = picture.find("<path", at + 1)) {
    ++arrows;
  }
  EXPECT_EQ(arrows, 2u + 2u + 2u + 2u);
  EXPECT_EQ(testing::xml_fault(steps_picture(idle_plan(), "idle")), "");
}

TEST(StepsPicture, ShowsReceivedQueriesAndManyRanks) {
  const std::string picture = steps_picture(rectangle_plan(), "rectangle");
  EXPECT_EQ(testing::xml_fault(picture), "");
  for (const char* text : {">q to segment 1<", ">out, lse of segment 1<", ">dq of segment 1<",
                           ">q segment 1, k own<", ">q, dout to segment 1<"}) {
    EXPECT_TRUE(has(picture, text)) << text;
  }
  PlanConfig config{.num_ranks = 16, .num_heads_q = 2, .num_heads_kv = 2, .overlap_degree = 2};
  const Mask mask{.rows_q = 512, .rows_k = 512, .slices = {{.q1 = 512, .k1 = 512}}};
  const std::string many = steps_picture(make_plan(mask, config), "many");
  EXPECT_EQ(testing::xml_fault(many), "");
  EXPECT_TRUE(has(many, "the first 8 of 16 ranks"));
}

TEST(Xml, TheCheckerFindsFaults) {
  EXPECT_EQ(testing::xml_fault("<a b=\"c\"><d/>e&amp;</a>\n"), "");
  for (const char* bad : {"", "<a>", "<a></b>", "<a b=c/>", "<a b=\"1\" b=\"2\"/>", "<a/><b/>",
                          "<a>&nbsp;</a>", "<a", "x<a/>", "<a b=\"1/>"}) {
    EXPECT_NE(testing::xml_fault(bad), "") << bad;
  }
}

TEST(Pictures, OfManyRanksStaySmallAndKeepTheSums) {
  const Mask mask{1 << 17, 1 << 17, {band_slice({0, 1 << 17}, {0, 1 << 17}, MaskType::Causal)}};
  const Plan plan = make_plan(mask, {.num_ranks = 4096, .overlap_degree = 2});
  for (const std::string& picture :
       {mask_picture(plan.mask, &plan.placement_q, "t"), placement_picture(plan, "t"),
        traffic_picture(plan, "t"), timeline_picture(plan, "t"), steps_picture(plan, "t")}) {
    EXPECT_EQ(testing::xml_fault(picture), "");
    EXPECT_LT(picture.size(), 5'000'000u);
  }
  std::int64_t bytes = 0;  // of a cell: what 32 ranks send to the next 32
  for (std::int64_t src = 0; src < 32; ++src) {
    for (std::int64_t dst = 32; dst < 64; ++dst) {
      bytes += plan.report.pair_bytes[static_cast<std::size_t>(src * 4096 + dst)];
    }
  }
  EXPECT_GT(bytes, 0);
  EXPECT_NE(traffic_picture(plan, "t").find("ranks 0 to 31 to ranks 32 to 63: " + grouped(bytes) +
                                            " bytes<"),
            std::string::npos);
}

}  // namespace
}  // namespace magi::draw
